"""Calls that wait are sent together: the more wait, the larger the next batches, and nobody waits for a batch to fill.

What waits is spread evenly over those who answer side by side; each of them answers a large batch sooner than two small ones.

Invariants: at most `max_in_flight` batches are under way; at most `max_waiting` items wait, and one more is refused at once;
an item whose caller has given up is not sent; each caller gets the result at the place of its own item.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rl_cluster.errors import ToolUnavailableError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Coalescer(Generic[Item, Result]):
    """Belongs to the event loop that first calls `submit`."""

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[list[Result]]],
        *,
        max_batch: int,
        max_in_flight: int,
        max_waiting: int,
        spread: int = 1,
        name: str = "the service",
    ):
        """`send` answers a batch in its order; `spread`: how many answer side by side; `name` stands in the message of a refusal."""
        self._send = send
        self._max_batch = max_batch
        self._max_in_flight = max_in_flight
        self._max_waiting = max_waiting
        self._spread = spread
        self._name = name
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._pump_is_due = False

    @property
    def waiting(self) -> int:
        """Items that are not yet sent."""
        return len(self._waiting)

    def submit(self, item: Item) -> asyncio.Future[Result]:
        """The result of one item, or what `send` raises; ToolUnavailableError where too many wait. Cancelling it gives up."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()
        if len(self._waiting) >= self._max_waiting:
            self._forget_given_up()
        if len(self._waiting) >= self._max_waiting:
            message = f"{self._name} has {len(self._waiting)} requests waiting, which is its limit; try again later."
            result.set_exception(ToolUnavailableError(message))
            return result
        self._waiting.append((item, result))
        if not self._pump_is_due:
            # Not at once: whoever submits in the same turn of the loop shares the batch.
            self._pump_is_due = True
            loop.call_soon(self._pump)
        return result

    def _forget_given_up(self) -> None:
        """Behind a batch that stalls, callers give up, and what they asked must not keep others out."""
        self._waiting = deque(entry for entry in self._waiting if not entry[1].done())

    def _pump(self) -> None:
        self._pump_is_due = False
        while self._waiting and len(self._running) < self._max_in_flight:
            batch: list[tuple[Item, asyncio.Future[Result]]] = []
            share = -(-len(self._waiting) // max(1, self._spread - len(self._running)))
            while self._waiting and len(batch) < min(share, self._max_batch):
                entry = self._waiting.popleft()
                if not entry[1].done():
                    batch.append(entry)
            if batch:
                task = asyncio.create_task(self._run(batch))
                self._running.add(task)
                task.add_done_callback(self._ended)

    async def _run(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._send([item for item, _ in batch])
            if len(results) != len(batch):
                raise ToolUnavailableError(f"{self._name} gave {len(results)} answers to {len(batch)} requests.")
        except BaseException as error:
            for _, result in batch:
                if not result.done():
                    if isinstance(error, Exception):
                        result.set_exception(error)
                    else:
                        result.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for (_, result), value in zip(batch, results, strict=True):
            if not result.done():
                result.set_result(value)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._pump()
