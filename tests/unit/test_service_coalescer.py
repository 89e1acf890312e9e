"""Calls that wait are sent as one; what the module's invariants promise."""

from __future__ import annotations

import asyncio

import pytest

from rl_cluster.errors import ToolUnavailableError
from rl_cluster.service.coalescer import Coalescer


class Line:
    """Doubles numbers when it is let; it remembers its batches."""

    def __init__(self, **limits: int) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.most_at_once = self.at_once = 0
        settings = {"max_batch": 8, "max_in_flight": 1, "max_waiting": 100, **limits}
        self.coalescer: Coalescer[int, int] = Coalescer(self.send, **settings, name="The line")

    async def send(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.open.wait()
        self.at_once -= 1
        if 13 in items:
            raise ToolUnavailableError("thirteen")
        return [2 * item for item in items][: 99 if 7 not in items else 0]


def test_coalescer_many_at_once_are_sent_in_few_batches_and_answered_in_place() -> None:
    async def scenario() -> None:
        line = Line()
        line.open.set()
        answers = await asyncio.gather(*(line.coalescer.submit(i) for i in range(20, 40)))
        assert answers == [2 * i for i in range(20, 40)]
        assert [len(batch) for batch in line.batches] == [8, 8, 4]
        assert line.most_at_once == 1

    asyncio.run(scenario())


def test_coalescer_single_call_goes_at_once_alone() -> None:
    async def scenario() -> None:
        line = Line()
        line.open.set()
        assert await line.coalescer.submit(20) == 40
        assert line.batches == [[20]]

    asyncio.run(scenario())


def test_coalescer_in_flight_bound_is_kept() -> None:
    async def scenario() -> None:
        line = Line(max_batch=2, max_in_flight=3)
        calls = [asyncio.ensure_future(line.coalescer.submit(i)) for i in range(20, 40)]
        await asyncio.sleep(0.01)
        assert (line.at_once, line.coalescer.waiting) == (3, 14)
        line.open.set()
        await asyncio.gather(*calls)
        assert line.most_at_once == 3

    asyncio.run(scenario())


def test_coalescer_what_waits_is_spread_evenly_over_those_who_answer() -> None:
    async def scenario() -> None:
        line = Line(max_batch=32, max_in_flight=6, spread=3)
        calls = [asyncio.ensure_future(line.coalescer.submit(i)) for i in range(20, 30)]
        await asyncio.sleep(0.01)
        assert [len(batch) for batch in line.batches] == [4, 3, 3]
        calls += [asyncio.ensure_future(line.coalescer.submit(i)) for i in range(30, 35)]
        await asyncio.sleep(0.01)
        assert [len(batch) for batch in line.batches] == [4, 3, 3, 5]  # all have work: what comes then stays together
        line.open.set()
        assert await asyncio.gather(*calls) == [2 * i for i in range(20, 35)]

    asyncio.run(scenario())


def test_coalescer_full_line_refuses_one_more_and_serves_the_others() -> None:
    async def scenario() -> None:
        line = Line(max_batch=1, max_waiting=2)
        calls = [asyncio.ensure_future(line.coalescer.submit(20))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls += [asyncio.ensure_future(line.coalescer.submit(i)) for i in (21, 22)]
        await asyncio.sleep(0)
        with pytest.raises(ToolUnavailableError, match="The line has 2 requests waiting"):
            await line.coalescer.submit(23)
        line.open.set()
        assert await asyncio.gather(*calls) == [40, 42, 44]

    asyncio.run(scenario())


def test_coalescer_caller_that_gave_up_is_not_sent() -> None:
    async def scenario() -> None:
        line = Line(max_batch=1)
        first = asyncio.ensure_future(line.coalescer.submit(20))
        await asyncio.sleep(0.01)
        second, third = (asyncio.ensure_future(line.coalescer.submit(i)) for i in (21, 22))
        await asyncio.sleep(0)
        second.cancel()
        line.open.set()
        assert await asyncio.gather(first, third) == [40, 44]
        assert line.batches == [[20], [22]]

    asyncio.run(scenario())


def test_coalescer_callers_that_gave_up_leave_their_room_to_others() -> None:
    async def scenario() -> None:
        line = Line(max_batch=1, max_waiting=2)
        stalled = asyncio.ensure_future(line.coalescer.submit(1))
        await asyncio.sleep(0.01)
        given_up = [asyncio.ensure_future(line.coalescer.submit(number)) for number in (2, 3)]
        await asyncio.sleep(0.01)
        for caller in given_up:
            caller.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        late = asyncio.ensure_future(line.coalescer.submit(4))
        await asyncio.sleep(0.01)
        line.open.set()
        assert await asyncio.gather(stalled, late) == [2, 8]
        assert line.batches == [[1], [4]]

    asyncio.run(scenario())


def test_coalescer_error_of_a_batch_reaches_its_callers_only() -> None:
    async def scenario() -> None:
        line = Line(max_batch=2)
        line.open.set()
        answers = await asyncio.gather(*(line.coalescer.submit(i) for i in (12, 13, 14)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [ToolUnavailableError, ToolUnavailableError, int]
        with pytest.raises(ToolUnavailableError, match="0 answers to 1 requests"):
            await line.coalescer.submit(7)

    asyncio.run(scenario())
