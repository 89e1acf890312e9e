"""`EventLog`: what happened in a run, in order, for whoever watches it."""

from __future__ import annotations

import time
from typing import Any


class EventLog:
    """Append-only; a reader remembers how many events it has seen."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def emit(self, kind: str, **fields: Any) -> None:
        self._events.append({"kind": kind, "time": time.time(), **fields})

    def say(self, text: str) -> None:
        """A sentence for a person."""
        self.emit("message", text=text)

    def since(self, number: int) -> list[dict[str, Any]]:
        """Everything after the first `number` events."""
        return self._events[number:]
