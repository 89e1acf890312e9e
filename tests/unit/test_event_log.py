"""What a person hears of a part that takes long."""

from __future__ import annotations

import asyncio

import pytest

from actors import event_log
from actors.event_log import EventLog


def test_event_log_while_busy_says_again_what_is_under_way_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "STILL_EVERY_S", 0.01)
    log = EventLog()

    async def start() -> None:
        async with log.while_busy("starting"):
            while len(log.since(0)) < 3:
                await asyncio.sleep(0.01)
            raise ValueError("over")

    async def work() -> None:
        with pytest.raises(ValueError, match="over"):
            await start()
        said = len(log.since(0))
        await asyncio.sleep(0.1)
        assert len(log.since(0)) == said

    asyncio.run(asyncio.wait_for(work(), 30))
    assert [event["text"] for event in log.since(0)][:3] == ["starting", "still starting (0 s)", "still starting (0 s)"]
