"""Two steps of a swap: all open, then all switch; or nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rl_cluster.errors import DeadlineError, IndexFormatError, SearchRequestError
from rl_cluster.service import registry as registry_module
from rl_cluster.service.registry import IndexRegistry, IndexView, Member

START = IndexView(0, {"kb": "/one"}, {})


class Replica:
    """A replica that follows the registry; `opens` says what is wrong with a folder, `switches` with all, or nothing."""

    def __init__(
        self,
        registry: IndexRegistry,
        name: str,
        deployment: str = "Words",
        opens: Callable[[str], str] = lambda folder: "",
        switches: Callable[[list[str]], str] = lambda folders: "",
    ) -> None:
        self.registry, self.opens, self.switches = registry, opens, switches
        self.member = Member(deployment, name)
        self.view = registry.view
        self.history: list[IndexView] = []
        self.task = asyncio.ensure_future(self.follow())

    async def follow(self) -> None:
        error = ""
        while True:
            view = await self.registry.wait_newer(self.member, self.view, error, 0.05)
            if view.generation > self.view.generation:
                error = next(filter(None, map(self.opens, view.pending.values())), "")
                error = error or self.switches(list(view.folders.values()))
                self.history.append(view)
                self.view = view


def test_swap_all_members_open_before_any_switches() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START, ["Words"])
        members = [Replica(registry, name) for name in "abc"]
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
        registry = IndexRegistry(START, ["Words"])
        members = [Replica(registry, "a"), Replica(registry, "b", opens=lambda folder: f"{folder} is cut")]
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
        registry = IndexRegistry(START, ["Words"])
        Replica(registry, "a")
        await registry.wait_newer(Member("Words", "stuck"), START, "", 0.01)
        with pytest.raises(DeadlineError, match=r"within 0 s \(Words stuck\)"):
            await registry.swap("kb", "/two", 0.3)
        assert registry.view.folders == {"kb": "/one"}

    asyncio.run(scenario())


def test_swap_member_that_does_not_switch_ends_in_a_deadline_that_says_so() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START, ["Words"])
        Replica(registry, "a")
        stuck = await registry.wait_newer(Member("Words", "stuck"), START, "", 0.01)
        swap = asyncio.ensure_future(registry.swap("kb", "/two", 0.3))
        opened = await registry.wait_newer(Member("Words", "stuck"), stuck, "", 1.0)
        assert opened.pending == {"kb": "/two"}
        await registry.wait_newer(Member("Words", "stuck"), opened, "", 0.01)
        with pytest.raises(
            DeadlineError, match=r"is opened by all replicas, but not all had switched .*\(Words stuck\)"
        ):
            await swap
        assert registry.view.folders == {"kb": "/two"}

    asyncio.run(scenario())


def test_swap_member_that_fails_to_switch_takes_the_change_back() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START, ["Words"])
        Replica(registry, "a")
        failing = Replica(registry, "b", switches=lambda folders: "b has lost its disk" if "/two" in folders else "")
        await asyncio.sleep(0.01)
        with pytest.raises(IndexFormatError, match="b has lost its disk"):
            await registry.swap("kb", "/two", 5.0)
        await asyncio.sleep(0.05)
        assert failing.view.folders == registry.view.folders == {"kb": "/one"}

    asyncio.run(scenario())


def test_swap_member_that_died_is_not_waited_for() -> None:
    async def scenario() -> None:
        now = 0.0
        registry = IndexRegistry(START, ["Words"], lambda: now)
        await registry.wait_newer(Member("Words", "dead"), START, "", 0.01)
        now = registry_module.ALIVE_S + 1
        Replica(registry, "a")
        await asyncio.sleep(0.01)
        await registry.swap("kb", "/two", 5.0)
        assert registry.view.folders == {"kb": "/two"}

    asyncio.run(scenario())


def test_swap_second_one_at_once_is_refused() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START, ["Words"])
        await registry.wait_newer(Member("Words", "stuck"), START, "", 0.01)
        first = asyncio.ensure_future(registry.swap("kb", "/two", 0.3))
        await asyncio.sleep(0.01)
        with pytest.raises(SearchRequestError, match="just being swapped"):
            await registry.swap("kb", "/three", 0.3)
        with pytest.raises(DeadlineError):
            await first

    asyncio.run(scenario())


def test_registry_that_was_lost_takes_over_the_newest_view_of_a_member() -> None:
    async def scenario() -> None:
        registry = IndexRegistry(START, ["Words"])
        newer = IndexView(4, {"kb": "/four"}, {})
        assert await registry.wait_newer(Member("Words", "a"), newer, "", 0.01) == newer
        assert await registry.wait_newer(Member("Words", "b"), START, "", 0.01) == newer

    asyncio.run(scenario())


def test_swap_member_that_opens_for_longer_than_it_may_be_silent_is_waited_for() -> None:
    async def scenario() -> None:
        now = 0.0
        registry = IndexRegistry(START, ["Words"], lambda: now)
        slow = Member("Words", "slow")
        await registry.wait_newer(slow, START, "", 0.01)
        swap = asyncio.ensure_future(registry.swap("kb", "/two", 30.0))
        opened = await registry.wait_newer(slow, START, "", 1.0)
        assert opened.pending == {"kb": "/two"}
        for _ in range(5):
            now += registry_module.ALIVE_S - 1
            await registry.opening(slow)
            await asyncio.sleep(0.01)
            assert not swap.done()
        switched = await registry.wait_newer(slow, opened, "", 1.0)
        await registry.wait_newer(slow, switched, "", 0.01)
        await swap

    asyncio.run(scenario())


def test_swap_error_after_a_long_opening_reaches_the_one_who_asked() -> None:
    async def scenario() -> None:
        now = 0.0
        registry = IndexRegistry(START, ["Words"], lambda: now)
        slow = Member("Words", "slow")
        await registry.wait_newer(slow, START, "", 0.01)
        swap = asyncio.ensure_future(registry.swap("kb", "/two", 30.0))
        opened = await registry.wait_newer(slow, START, "", 1.0)
        now += 10 * registry_module.ALIVE_S
        await registry.wait_newer(slow, opened, "/two does not fit into memory", 0.01)
        with pytest.raises(IndexFormatError, match="/two does not fit into memory"):
            await swap
        assert registry.view.folders == {"kb": "/one"}

    asyncio.run(scenario())


@pytest.mark.parametrize("silent", [True, False])
def test_swap_deployment_without_a_living_replica_is_no_success(silent: bool) -> None:
    """Every deployment opens the new folder, also one whose only replica is silent or has never been heard of."""

    async def scenario() -> None:
        now = 0.0
        registry = IndexRegistry(START, ["Words", "Vectors"], lambda: now)
        if silent:
            await registry.wait_newer(Member("Vectors", "gone"), START, "", 0.01)
            now = registry_module.ALIVE_S + 1
        Replica(registry, "a")
        await asyncio.sleep(0.01)
        with pytest.raises(DeadlineError, match=r"not opened by all .*\(no living replica of Vectors\)"):
            await registry.swap("kb", "/two", 0.3)
        assert registry.view.folders == {"kb": "/one"}
        Replica(registry, "b", "Vectors")
        await asyncio.sleep(0.01)
        await registry.swap("kb", "/two", 5.0)
        assert registry.view.folders == {"kb": "/two"}

    asyncio.run(scenario())
