"""Weights that travel through the object store: the snapshot that a worker on another node gets, and what is left of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import actors.weight_sync
from actors.weight_sync import Publication, WeightSync, local_snapshot
from rl_cluster.errors import DeadlineError, WeightSyncError
from rl_cluster.learning.weight_version import WeightVersion

HERE, THERE = "node-a", "node-b"


class Remote:
    """A handle of the real class in this process: `handle.method.remote(...)` gives its coroutine."""

    def __init__(self) -> None:
        self.served: Any = WeightSync.__ray_metadata__.modified_class()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self.served, name))


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Remote, Publication]:
    """Three and a half chunks, published from `HERE`."""
    monkeypatch.setattr(actors.weight_sync, "CHUNK_BYTES", 1000)
    path = tmp_path / "learner" / "run-000001.safetensors"
    path.parent.mkdir()
    path.write_bytes(os.urandom(3500))
    sync = Remote()
    weights = WeightVersion(7, str(path), HERE, 3500, {})

    async def publish() -> None:
        await sync.served.publish(weights)

    asyncio.run(publish())
    return sync, sync.served.newest


def pulled(
    sync: Remote, publication: Publication, folder: Path, node: str = THERE, transport: str = "object_store"
) -> Path:
    return asyncio.run(local_snapshot(sync, publication, transport, folder, node))


@pytest.mark.parametrize("size", [3500, 4000, 1, 0])
def test_local_snapshot_on_another_node_is_a_copy_byte_by_byte(
    published: tuple[Remote, Publication], tmp_path: Path, size: int
) -> None:
    sync, publication = published
    source = Path(publication.weights.path)
    source.write_bytes(os.urandom(size))
    weights = WeightVersion(7, str(source), HERE, size, {})
    path = pulled(sync, Publication(1, weights), tmp_path / "there")
    assert path.parent == tmp_path / "there"
    assert path.name.startswith("run-000001")
    assert path.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("node", "transport"), [(HERE, "object_store"), (HERE, "shared_memory"), (THERE, "shared_memory")]
)
def test_local_snapshot_on_the_learners_host_is_its_own_file(
    published: tuple[Remote, Publication], tmp_path: Path, node: str, transport: str
) -> None:
    sync, publication = published
    assert str(pulled(sync, publication, tmp_path / "there", node, transport)) == publication.weights.path
    assert not (tmp_path / "there").exists()


def test_local_snapshot_of_another_size_is_refused_and_removed(
    published: tuple[Remote, Publication], tmp_path: Path
) -> None:
    sync, publication = published
    Path(publication.weights.path).write_bytes(b"x" * 3400)
    with pytest.raises(WeightSyncError, match="3400 bytes of weights version 7 arrived instead of 3500"):
        pulled(sync, publication, tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_local_snapshot_chunk_that_never_comes_leaves_nothing(
    published: tuple[Remote, Publication], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, publication = published
    first = sync.served.read_chunk

    async def stuck(sequence: int, index: int) -> bytes:
        if index:
            await asyncio.Event().wait()
        return await first(sequence, index)

    sync.served.read_chunk = stuck
    monkeypatch.setattr(actors.weight_sync.ask, "__defaults__", (0.05,))
    with pytest.raises(DeadlineError, match="The weight sync did not answer"):
        pulled(sync, publication, tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_local_snapshot_removes_what_a_killed_worker_left_and_no_other(
    published: tuple[Remote, Publication], tmp_path: Path
) -> None:
    sync, publication = published
    folder = tmp_path / "there"
    folder.mkdir()
    dead = 2**22 + 1  # above the highest process id
    left = folder / f"other-000003-pulled-{THERE}-{dead}.safetensors"
    others = [
        folder / f"other-000003-pulled-{THERE}-{os.getppid()}.safetensors",
        folder / f"other-000003-pulled-{HERE}-{dead}.safetensors",
        folder / "other-000003.safetensors",
    ]
    for path in (left, *others):
        path.write_bytes(b"")
    path = pulled(sync, publication, folder)
    assert sorted(folder.iterdir()) == sorted([path, *others])


async def publish(sync: Any, folder: Path, number: int) -> None:
    path = folder / f"run-{number}.safetensors"
    path.write_bytes(b"")
    await sync.publish(WeightVersion(number, str(path), HERE, 0, {}))


def test_weight_sync_keeps_the_newest_snapshot_and_those_that_a_worker_still_loads(tmp_path: Path) -> None:
    async def story() -> dict[str, list[str]]:
        sync: Any = WeightSync.__ray_metadata__.modified_class()
        files: dict[str, list[str]] = {}

        def look(when: str) -> None:
            files[when] = sorted(path.stem for path in tmp_path.iterdir())

        for worker in ("quick", "stuck"):
            await sync.register(worker)
        await publish(sync, tmp_path, 1)
        for worker in ("quick", "stuck"):
            assert (await sync.wait_newer(worker, 0, 1.0)).sequence == 1
        await sync.acknowledge("quick", 1)
        for number in (2, 3, 4):
            await publish(sync, tmp_path, number)
        look("one is stuck in the first")
        assert (await sync.wait_newer("quick", 1, 1.0)).sequence == 4
        await publish(sync, tmp_path, 5)
        look("another loads the fourth")
        await sync.acknowledge("quick", 4)
        look("the fourth is loaded")
        await sync.unregister("stuck")
        look("the stuck one is gone")
        return files

    assert asyncio.run(story()) == {
        "one is stuck in the first": ["run-1", "run-4"],
        "another loads the fourth": ["run-1", "run-4", "run-5"],
        "the fourth is loaded": ["run-1", "run-5"],
        "the stuck one is gone": ["run-5"],
    }


@pytest.mark.parametrize("left_by", ["a newer publication", "a time-out", "a new incarnation", "an unknown worker"])
def test_weight_sync_snapshot_that_its_worker_left_is_removed(tmp_path: Path, left_by: str) -> None:
    async def story() -> list[str]:
        sync: Any = WeightSync.__ray_metadata__.modified_class()
        if left_by != "an unknown worker":
            await sync.register("worker")
        await publish(sync, tmp_path, 1)
        assert (await sync.wait_newer("worker", 0, 1.0)).sequence == 1
        if left_by == "a new incarnation":
            await sync.register("worker")
        if left_by == "a time-out":
            assert await sync.wait_newer("worker", 1, 0.01) is None
        await publish(sync, tmp_path, 2)
        if left_by == "a newer publication":
            assert (await sync.wait_newer("worker", 0, 1.0)).sequence == 2
        return sorted(path.stem for path in tmp_path.iterdir())

    assert asyncio.run(story()) == ["run-2"]
