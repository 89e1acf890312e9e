"""Which folder each name of an index stands for, and the change from one to a newer one without a request that fails.

A change has two steps: every member (a replica) opens the new folder beside the old one, and only when all have it do they
switch. Members ask for the newest view again and again, which also says that they live and what they have reached; while they
open a folder they say so. One that is not heard of for `ALIVE_S` seconds is waited for no longer. A registry that was lost starts
from what the first member brings, and takes over a newer view where another one has it.

Invariant: a step is done only when at least one living member of each deployment has done it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from rl_cluster.errors import DeadlineError, IndexFormatError, SearchRequestError

ALIVE_S = 15.0


@dataclass(frozen=True)
class IndexView:
    """Name -> folder, as of `generation`; `pending` folders are to be opened, but not to be answered from."""

    generation: int
    folders: dict[str, str]
    pending: dict[str, str]


@dataclass(frozen=True, order=True)
class Member:
    """A replica, by its own name, of one deployment."""

    deployment: str
    replica: str

    def __str__(self) -> str:
        return f"{self.deployment} {self.replica}"


class IndexRegistry:
    """Belongs to one event loop."""

    def __init__(
        self, view: IndexView, deployments: Collection[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`deployments`: all of the service, each of which has a part in every change."""
        self.view = view
        self._deployments = sorted(set(deployments))
        self._clock = clock
        self._changed = asyncio.Condition()
        self._reached: dict[Member, tuple[int, str]] = {}
        self._seen: dict[Member, float] = {}
        self._swapping = False

    async def wait_newer(self, member: Member, reached: IndexView, error: str, timeout_s: float) -> IndexView:
        """The view after `reached`, or the same one after `timeout_s`.

        `reached`: what the member has; `error`: why it could not open what that view asks for, or empty.
        """
        async with self._changed:
            if reached.generation > self.view.generation:
                self.view = reached
            self._reached[member] = (reached.generation, error)
            self._seen[member] = self._clock()
            self._changed.notify_all()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait_for(lambda: self.view.generation > reached.generation)
            except TimeoutError:
                self._seen[member] = self._clock()
            return self.view

    async def opening(self, member: Member) -> None:
        """A sign of life of a member that does not ask, since it opens what the last view told it to."""
        if member in self._reached:
            self._seen[member] = self._clock()

    async def swap(self, name: str, folder: str, timeout_s: float) -> None:
        """Makes `name` stand for `folder` at all members, or changes nothing.

        Raises IndexFormatError where a member cannot open it, DeadlineError where one does not answer in time (the message says
        whether `name` already stands for `folder`), and SearchRequestError while another change is under way.
        """
        if self._swapping:
            raise SearchRequestError("Another index is just being swapped in; try again when that is done.")
        self._swapping = True
        before, opened = self.view.folders, False
        try:
            async with asyncio.timeout(timeout_s):
                await self._change(before, {name: folder})
                problems = await self._all_reached()
                if problems:
                    raise IndexFormatError(problems[0])
                opened = True
                await self._change({**before, name: folder}, {})
                problems = await self._all_reached()
                if problems:
                    await self._change(before, {})
                    raise IndexFormatError(problems[0])
        except TimeoutError as error:
            late = ", ".join([*map(str, sorted(self._late())), *self._absent()]) or "no replica"
            if opened:
                raise DeadlineError(
                    f"The index {name!r} is opened by all replicas, but not all had switched to it within {timeout_s:.0f} s "
                    f"({late}); they switch as soon as they answer again."
                ) from error
            raise DeadlineError(
                f"The index {name!r} was not opened by all replicas within {timeout_s:.0f} s ({late}); the service goes on "
                "with what it has."
            ) from error
        finally:
            if self.view.pending:
                await self._change(self.view.folders, {})
            self._swapping = False

    async def _change(self, folders: Mapping[str, str], pending: Mapping[str, str]) -> None:
        async with self._changed:
            self.view = IndexView(self.view.generation + 1, dict(folders), dict(pending))
            self._changed.notify_all()

    async def _all_reached(self) -> list[str]:
        """Waits until all living members, and some of each deployment, have reached the view; returns their errors."""
        async with self._changed:
            while self._late() or self._absent():
                # A member that dies is noticed by its silence, not by a message.
                try:
                    async with asyncio.timeout(1.0):
                        await self._changed.wait()
                except TimeoutError:
                    continue
            return [error for member in self._alive() if (error := self._reached[member][1])]

    def _alive(self) -> list[Member]:
        return [member for member, seen in self._seen.items() if self._clock() - seen < ALIVE_S]

    def _late(self) -> list[Member]:
        return [member for member in self._alive() if self._reached[member][0] < self.view.generation]

    def _absent(self) -> list[str]:
        """The deployments without a living member, as a message says it."""
        there = {member.deployment for member in self._alive()}
        return [f"no living replica of {name}" for name in self._deployments if name not in there]
