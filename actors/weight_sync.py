"""`WeightSync`: the one place that knows the newest weights and who runs them.

Workers pull: each waits here for something newer than what it has, loads it by itself and acknowledges it. One slow or
dead worker therefore blocks nobody. Kept are the newest snapshot's file and those that a registered worker was given and
has neither acknowledged nor left for a newer one. `sequence` orders publications; it differs from the version when earlier
weights are published again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from actors.remote import Handle, actor, ask, within
from rl_cluster.errors import WeightSyncError
from rl_cluster.learning.weight_version import WeightVersion

CHUNK_BYTES = 64 << 20
_PULLED = "-pulled-"


@dataclass(frozen=True)
class Publication:
    """A snapshot in the order of publication; `sender` is the learner rank that holds it when it is in no file."""

    sequence: int
    weights: WeightVersion
    sender: Handle | None = None


@actor(num_cpus=0, max_concurrency=1000)
class WeightSync:
    """Lives on the node of learner rank 0, whose snapshots it can read."""

    def __init__(self) -> None:
        self.newest: Publication | None = None
        self.published: dict[int, WeightVersion] = {}
        self.acknowledged: dict[str, int] = {}
        self.loading: dict[str, int] = {}
        self.changed = asyncio.Condition()

    async def publish(self, weights: WeightVersion, sender: Handle | None = None) -> int:
        """Makes `weights` the newest; returns the sequence number."""
        async with self.changed:
            sequence = self.newest.sequence + 1 if self.newest else 1
            self.newest = Publication(sequence, weights, sender)
            self.published[sequence] = weights
            self._discard_old()
            self.changed.notify_all()
        return sequence

    async def register(self, worker_id: str) -> None:
        """A worker that will pull; it has nothing yet."""
        self.acknowledged[worker_id] = 0
        self.loading.pop(worker_id, None)

    async def unregister(self, worker_id: str) -> None:
        """A worker that is gone; its missing acknowledgements hold nothing back any more."""
        async with self.changed:
            self.acknowledged.pop(worker_id, None)
            self.loading.pop(worker_id, None)
            self._discard_old()
            self.changed.notify_all()

    async def wait_newer(self, worker_id: str, sequence: int, timeout_s: float) -> Publication | None:
        """The newest publication as soon as it is past `sequence`, for `worker_id` to load; None after `timeout_s`."""
        async with self.changed:
            self.loading.pop(worker_id, None)
            self._discard_old()
            try:
                await within(timeout_s, self.changed.wait_for(lambda: self._is_past(sequence)))
            except TimeoutError:
                return None
            if self.newest is not None and worker_id in self.acknowledged:
                self.loading[worker_id] = self.newest.sequence
            return self.newest

    async def acknowledge(self, worker_id: str, sequence: int) -> None:
        """`worker_id` runs publication `sequence`, probe verified."""
        async with self.changed:
            if worker_id in self.acknowledged:
                self.acknowledged[worker_id] = sequence
                self.loading.pop(worker_id, None)
            self._discard_old()
            self.changed.notify_all()

    async def wait_acknowledged(self, sequence: int, timeout_s: float) -> list[str]:
        """Waits until all registered workers run `sequence` or newer; returns those that do not after `timeout_s`."""
        async with self.changed:
            # After the time-out the caller is told who is behind, and decides.
            with contextlib.suppress(TimeoutError):
                await within(timeout_s, self.changed.wait_for(lambda: not self._behind(sequence)))
            return self._behind(sequence)

    async def read_chunk(self, sequence: int, index: int) -> bytes:
        """Bytes [index * CHUNK_BYTES, ...) of a snapshot's file; empty past its end."""
        with open(self.published[sequence].path, "rb") as file:
            file.seek(index * CHUNK_BYTES)
            return file.read(CHUNK_BYTES)

    async def close(self) -> None:
        """Removes all snapshots."""
        for weights in self.published.values():
            _remove(weights)
        self.published.clear()

    def _is_past(self, sequence: int) -> bool:
        return self.newest is not None and self.newest.sequence > sequence

    def _behind(self, sequence: int) -> list[str]:
        return sorted(worker for worker, seen in self.acknowledged.items() if seen < sequence)

    def _discard_old(self) -> None:
        if self.newest is None:
            return
        needed = {self.newest.sequence, *self.loading.values()}
        for sequence in [s for s in self.published if s not in needed]:
            _remove(self.published.pop(sequence))


def _remove(weights: WeightVersion) -> None:
    if weights.path:  # empty where the weights stay on a device
        Path(weights.path).unlink(missing_ok=True)


async def local_snapshot(sync: Handle, publication: Publication, transport: str, folder: Path, node_id: str) -> Path:
    """A path on the host of node `node_id` that holds the snapshot: the learner's own file, or a copy in `folder`, chunk by chunk
    through the object store, which the caller removes.

    Nothing is left where that fails. Raises WeightSyncError for a copy of another size, DeadlineError for a chunk that is not sent.
    """
    weights = publication.weights
    if transport == "shared_memory" or (weights.node_id == node_id and os.path.exists(weights.path)):
        return Path(weights.path)
    folder.mkdir(parents=True, exist_ok=True)
    here = f"{_PULLED}{node_id[:12]}-"
    _remove_pulled_by_the_dead(folder, here)
    # Named after the run, whose end removes all that is.
    target = folder / f"{Path(weights.path).stem}{here}{os.getpid()}.safetensors"
    whole = False
    try:
        with open(target, "wb") as file:
            for index in range(-(-weights.num_bytes // CHUNK_BYTES)):
                file.write(await ask("The weight sync", sync.read_chunk.remote(publication.sequence, index)))
            size = file.tell()
        if size != weights.num_bytes:
            raise WeightSyncError(
                f"{target}: {size} bytes of weights version {weights.version} arrived instead of {weights.num_bytes}; was its file changed?"
            )
        whole = True
    finally:
        if not whole:
            target.unlink(missing_ok=True)
    return target


def _remove_pulled_by_the_dead(folder: Path, here: str) -> None:
    """A worker that was killed while it pulled has left a whole model in memory. Those of other nodes are theirs to judge."""
    for path in folder.glob(f"*{here}*.safetensors"):
        pid = path.stem.rpartition(here)[2]
        if not Path("/proc", pid).exists():
            path.unlink(missing_ok=True)
