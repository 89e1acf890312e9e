"""A replica follows the registry whatever goes wrong with what it is told to open."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from actors import search_replica
from actors.search_replica import Bm25Replica
from rl_cluster.errors import IndexFormatError
from rl_cluster.service.registry import IndexRegistry, IndexView

START = IndexView(0, {"kb": "/one"}, {})


class Catalog:
    """Opens every folder but `/broken`, which fails in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}

    def apply(self, folders: dict[str, str], pending: dict[str, str]) -> None:
        if "/broken" in pending.values():
            raise KeyError("vocabulary\nand more")
        self.folders = folders


def following(registry: IndexRegistry) -> Any:
    """A replica without its process: it follows a registry of this event loop."""
    replica: Any = object.__new__(Bm25Replica)
    replica.app_name, replica.member, replica.view, replica.catalog = "app", "one", registry.view, Catalog()
    replica.shard, replica.shards = 0, 1
    replica.registry = SimpleNamespace(wait_newer=SimpleNamespace(remote=registry.wait_newer))
    replica.following = asyncio.ensure_future(replica._follow())
    return replica


def test_follow_unexpected_error_fails_the_swap_with_its_reason_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search_replica, "POLL_S", 1.0)
    monkeypatch.setattr(search_replica.logger, "propagate", True)

    async def scenario() -> None:
        registry = IndexRegistry(START)
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
        registry = IndexRegistry(START)
        replica = following(registry)
        whole = replica.registry.wait_newer.remote

        async def nonsense(*asked: Any) -> Any:
            replica.registry.wait_newer.remote = whole
            return None

        replica.registry.wait_newer.remote = nonsense
        await asyncio.sleep(0.3)
        assert "AttributeError" in registry._reached["one"][1]
        await registry.swap("kb", "/two", 5.0)
        assert replica.catalog.folders == {"kb": "/two"}
        replica.following.cancel()

    asyncio.run(scenario())
