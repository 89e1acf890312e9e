"""`EventLog`: what happened in a run, in order, for whoever watches it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

STILL_EVERY_S = 20.0
"""A person who sees nothing for longer takes a program for dead."""


class EventLog:
    """Append-only; a reader remembers how many events it has seen."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def emit(self, kind: str, **fields: Any) -> None:
        self._events.append({"kind": kind, "time": time.time(), **fields})

    def say(self, text: str) -> None:
        """A sentence for a person."""
        self.emit("message", text=text)

    @asynccontextmanager
    async def while_busy(self, text: str) -> AsyncIterator[None]:
        """Says what is under way in the block, and says it again every `STILL_EVERY_S` until the block ends."""
        self.say(text)
        started = time.monotonic()

        async def remind() -> None:
            while True:
                await asyncio.sleep(STILL_EVERY_S)
                self.say(f"still {text} ({time.monotonic() - started:.0f} s)")

        reminder = asyncio.ensure_future(remind())
        try:
            yield
        finally:
            reminder.cancel()

    def since(self, number: int) -> list[dict[str, Any]]:
        """Everything after the first `number` events."""
        return self._events[number:]
