"""A replica follows the registry whatever goes wrong with what it is told to open."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from actors import search_replica
from actors.search_replica import Bm25Replica
from rl_cluster.errors import DeadlineError, IndexFormatError, RLClusterError
from rl_cluster.service.registry import IndexRegistry, IndexView, Member

START = IndexView(0, {"kb": "/one"}, {})
MEMBER = Member("Bm25Replica", "one")


class Catalog:
    """Opens every folder but `/broken`, which fails in a way that nobody foresaw; `/slow` waits until it is let."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}
        self.let = threading.Event()

    def apply(self, folders: dict[str, str], pending: dict[str, str]) -> None:
        if "/broken" in pending.values():
            raise KeyError("vocabulary\nand more")
        if "/slow" in pending.values():
            assert self.let.wait(10.0)
        self.folders = folders


def following(registry: IndexRegistry) -> Any:
    """A replica without its process: it follows a registry of this event loop."""
    replica: Any = object.__new__(Bm25Replica)
    replica.app_name, replica.member, replica.view, replica.catalog = "app", MEMBER, registry.view, Catalog()
    replica.shard, replica.shards = 0, 1
    calls = {"wait_newer": registry.wait_newer, "opening": registry.opening}
    replica.registry = SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in calls.items()})
    replica.following = asyncio.ensure_future(replica._follow())
    return replica


def test_follow_unexpected_error_fails_the_swap_with_its_reason_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search_replica, "POLL_S", 1.0)
    monkeypatch.setattr(search_replica.logger, "propagate", True)

    async def scenario() -> None:
        registry = IndexRegistry(START, ["Bm25Replica"])
        replica = following(registry)
        await asyncio.sleep(0.02)
        with pytest.raises(
            IndexFormatError, match=r"Bm25Replica cannot open its indexes \(KeyError: .*its log says more"
        ):
            await registry.swap("kb", "/broken", 5.0)
        assert not replica.following.done()
        await registry.swap("kb", "/two", 5.0)
        assert replica.catalog.folders == {"kb": "/two"}
        replica.following.cancel()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "KeyError" in caplog.text


def test_follow_registry_that_answers_nonsense_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_replica, "POLL_S", 1.0)
    monkeypatch.setattr(search_replica, "_PAUSE_S", 0.01)

    async def scenario() -> None:
        registry = IndexRegistry(START, ["Bm25Replica"])
        replica = following(registry)
        whole = replica.registry.wait_newer.remote

        async def nonsense(*asked: Any) -> Any:
            replica.registry.wait_newer.remote = whole
            return None

        replica.registry.wait_newer.remote = nonsense
        await asyncio.sleep(0.3)
        assert "AttributeError" in registry._reached[MEMBER][1]
        await registry.swap("kb", "/two", 5.0)
        assert replica.catalog.folders == {"kb": "/two"}
        replica.following.cancel()

    asyncio.run(scenario())


@pytest.mark.slow
def test_follow_long_opening_gives_signs_of_life_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them a swap would go on without the only replica, and say that it has switched."""
    monkeypatch.setattr(search_replica, "POLL_S", 0.4)

    async def scenario() -> None:
        registry = IndexRegistry(START, ["Bm25Replica"])
        replica = following(registry)
        signs: list[Member] = []

        async def opening(member: Member) -> None:
            signs.append(member)
            if len(signs) == 3:
                replica.catalog.let.set()

        replica.registry.opening.remote = opening
        await asyncio.sleep(0.02)
        await registry.swap("kb", "/slow", 20.0)
        assert replica.catalog.folders == {"kb": "/slow"}
        assert signs[:3] == [MEMBER] * 3
        replica.following.cancel()

    asyncio.run(scenario())


def starting(folder: str, **calls: Any) -> Any:
    """A replica without its process that has yet to open `folder`; `calls`: those of its registry."""
    replica: Any = object.__new__(Bm25Replica)
    replica.app_name, replica.catalog, replica.shard, replica.shards = "app", Catalog(), 0, 1

    async def view() -> IndexView:
        return IndexView(0, {}, {"kb": folder})

    answers = {"view": view, **calls}
    replica.registry = SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in answers.items()})
    return replica


async def silent(*asked: Any) -> Any:
    await asyncio.sleep(60.0)


def test_start_registry_that_is_silent_ends_in_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 10."""
    monkeypatch.setattr(search_replica, "_START_S", 0.05)
    told: list[RLClusterError] = []

    async def report(error: RLClusterError) -> None:
        told.append(error)

    with pytest.raises(DeadlineError, match="The registry of the indexes of app did not answer within"):
        asyncio.run(starting("/one", view=silent, report_start_failure=report)._open_first())
    assert isinstance(told[0], DeadlineError)


def test_start_failure_that_a_silent_registry_is_told_is_raised_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_replica, "POLL_S", 0.05)
    with pytest.raises(KeyError, match="vocabulary"):
        asyncio.run(starting("/broken", report_start_failure=silent)._open_first())
