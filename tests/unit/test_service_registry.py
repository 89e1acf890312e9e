"""Two steps of a swap: all open, then all switch; or nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rl_cluster.errors import DeadlineError, IndexFormatError, SearchRequestError
from rl_cluster.service import registry as registry_module
from rl_cluster.service.registry import IndexRegistry, IndexView

START = IndexView(0, {"kb": "/one"}, {})


class Member:
    """A replica that follows the registry; `opens` says what is wrong with a folder, `switches` with all, or nothing."""

    def __init__(
        self,
        registry: IndexRegistry,
        name: str,
        opens: Callable[[str], str] = lambda folder: "",
        switches: Callable[[list[str]], str] = lambda folders: "",
    ) -> None:
        self.registry, self.name, self.opens, self.switches = registry, name, opens, switches
        self.view = registry.view
        self.history: list[IndexView] = []
        self.task = asyncio.ensure_future(self.follow())

    async def follow(self) -> None:
        error = ""
        while True:
            view = await self.registry.wait_newer(self.name, self.view, error, 0.05)
            if view.generation > self.view.generation:
                error = next(filter(None, map(self.opens, view.pending.values())), "")
                error = error or self.switches(list(view.folders.values()))
                self.history.append(view)
                self.view = view


def test_swap_all_members_open_before_any_switches() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START)
        members = [Member(registry, name) for name in "abc"]
        await asyncio.sleep(0.01)
        await registry.swap("kb", "/two", 5.0)
        assert registry.view.folders == {"kb": "/two"}
        for member in members:
            first, second = member.history
            assert (first.folders, first.pending) == ({"kb": "/one"}, {"kb": "/two"})
            assert (second.folders, second.pending) == ({"kb": "/two"}, {})

    asyncio.run(scenario())


def test_swap_folder_that_one_member_cannot_open_changes_nothing() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START)
        members = [Member(registry, "a"), Member(registry, "b", lambda folder: f"{folder} is cut")]
        await asyncio.sleep(0.01)
        with pytest.raises(IndexFormatError, match="/two is cut"):
            await registry.swap("kb", "/two", 5.0)
        await asyncio.sleep(0.05)
        assert all(member.view.folders == {"kb": "/one"} for member in members)
        assert registry.view.pending == {}
        members[1].opens = lambda folder: ""
        await registry.swap("kb", "/three", 5.0)
        assert registry.view.folders == {"kb": "/three"}

    asyncio.run(scenario())


def test_swap_member_that_is_silent_but_recent_ends_in_a_deadline() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START)
        Member(registry, "a")
        await registry.wait_newer("stuck", START, "", 0.01)
        with pytest.raises(DeadlineError, match=r"within 0 s \(stuck\)"):
            await registry.swap("kb", "/two", 0.3)
        assert registry.view.folders == {"kb": "/one"}

    asyncio.run(scenario())


def test_swap_member_that_does_not_switch_ends_in_a_deadline_that_says_so() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START)
        Member(registry, "a")
        stuck = await registry.wait_newer("stuck", START, "", 0.01)
        swap = asyncio.ensure_future(registry.swap("kb", "/two", 0.3))
        opened = await registry.wait_newer("stuck", stuck, "", 1.0)
        assert opened.pending == {"kb": "/two"}
        await registry.wait_newer("stuck", opened, "", 0.01)
        with pytest.raises(DeadlineError, match=r"is opened by all replicas, but not all had switched .*\(stuck\)"):
            await swap
        assert registry.view.folders == {"kb": "/two"}

    asyncio.run(scenario())


def test_swap_member_that_fails_to_switch_takes_the_change_back() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START)
        Member(registry, "a")
        failing = Member(registry, "b", switches=lambda folders: "b has lost its disk" if "/two" in folders else "")
        await asyncio.sleep(0.01)
        with pytest.raises(IndexFormatError, match="b has lost its disk"):
            await registry.swap("kb", "/two", 5.0)
        await asyncio.sleep(0.05)
        assert failing.view.folders == registry.view.folders == {"kb": "/one"}

    asyncio.run(scenario())


def test_swap_member_that_died_is_not_waited_for() -> None:
    async def scenario() -> None:
        now = 0.0
        registry = IndexRegistry(START, lambda: now)
        await registry.wait_newer("dead", START, "", 0.01)
        now = registry_module.ALIVE_S + 1
        Member(registry, "a")
        await asyncio.sleep(0.01)
        await registry.swap("kb", "/two", 5.0)
        assert registry.view.folders == {"kb": "/two"}

    asyncio.run(scenario())


def test_swap_second_one_at_once_is_refused() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START)
        await registry.wait_newer("stuck", START, "", 0.01)
        first = asyncio.ensure_future(registry.swap("kb", "/two", 0.3))
        await asyncio.sleep(0.01)
        with pytest.raises(SearchRequestError, match="just being swapped"):
            await registry.swap("kb", "/three", 0.3)
        with pytest.raises(DeadlineError):
            await first

    asyncio.run(scenario())


def test_registry_that_was_lost_takes_over_the_newest_view_of_a_member() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START)
        newer = IndexView(4, {"kb": "/four"}, {})
        assert await registry.wait_newer("a", newer, "", 0.01) == newer
        assert await registry.wait_newer("b", START, "", 0.01) == newer

    asyncio.run(scenario())
