"""`Learner`: a Ray actor that holds one DeepSpeed rank, and `LearnerGroup`, which speaks to all ranks at once."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray

from actors.remote import Handle, actor, is_loss, value_of
from rl_cluster.errors import DeadlineError, LearnerError
from rl_cluster.learning.rank import LearnerRank
from rl_cluster.learning.settings import LearnerSettings, UpdateSettings
from rl_cluster.learning.weight_version import WeightVersion
from rl_cluster.sequences.row import TrainingRow


@actor(max_restarts=0)
class Learner:
    """One rank. All ranks must be called together: their methods meet in collectives."""

    def __init__(self, settings: LearnerSettings, rank: int, world_size: int) -> None:
        self.settings = settings
        self.rank_index = rank
        self.world_size = world_size
        self.rank: LearnerRank | None = None

    def address(self) -> tuple[str, int, str]:
        """This host's address, a free port for the rendezvous, and the node id."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return ray.util.get_node_ip_address(), port, ray.get_runtime_context().get_node_id()

    def setup(self, master: tuple[str, int]) -> None:
        self.rank = LearnerRank(self.settings, self.rank_index, self.world_size, master)
        self.rank.setup()

    def send_weights(
        self, worker: str, actor: Handle, world_size: int, sequence: int, version: int, timeout_s: float
    ) -> None:
        """Sends publication `sequence` from the device to the engine of `actor`; runs beside training, in a thread of
        the concurrency group "transfer". After `timeout_s` the channel is torn down, which ends a send that hangs.
        """
        assert self.rank is not None
        sender = self.rank.sender

        def call(step: str, payload: Any) -> None:
            ray.get(actor.transfer.remote(step, payload), timeout=timeout_s)

        alarm = threading.Timer(timeout_s, sender.close, [worker])
        alarm.start()
        try:
            sender.send(worker, world_size, sequence, version, call)
        finally:
            alarm.cancel()

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method of the rank; see rl_cluster.learning.rank.LearnerRank."""
        return getattr(self.rank, method)(*arguments, **named)


class LearnerGroup:
    """All ranks as one. Every call has a deadline; a rank that dies or hangs is named."""

    def __init__(self, ranks: list[Handle], node_id: str) -> None:
        self.ranks = ranks
        self.node_id = node_id
        self.busy_s = 0.0
        self.created_at = time.monotonic()

    @classmethod
    async def start(
        cls, settings: LearnerSettings, num_ranks: int, options: dict[str, Any], timeout_s: float
    ) -> LearnerGroup:
        """Creates all ranks and waits until they have met. Raises DeadlineError naming the missing ones."""
        ranks = [Learner.options(**options).remote(settings, rank, num_ranks) for rank in range(num_ranks)]
        # All of them, so that one that does not start is named, and not those that would wait for it.
        host, port, node_id = (await cls._gather([rank.address.remote() for rank in ranks], timeout_s, "start"))[0]
        group = cls(ranks, node_id)
        await group._gather([rank.setup.remote((host, port)) for rank in ranks], timeout_s, "setup")
        return group

    async def update(
        self, rows: Sequence[TrainingRow], update: UpdateSettings, timeout_s: float, supervised: bool = False
    ) -> dict[str, float]:
        """One optimiser step over all ranks; metrics of rank 0, which are those of all."""
        shared = ray.put(list(rows))
        return (await self._call("update", timeout_s, shared, update, supervised=supervised))[0]

    async def reference_gaps(self, rows: Sequence[TrainingRow], timeout_s: float) -> dict[int, Any]:
        """k1 of every row's sampled tokens against the reference, by the row's index; the ranks share the rows out."""
        shares = await self._call("reference_gaps", timeout_s, ray.put(list(rows)))
        return {index: gaps for share in shares for index, gaps in share.items()}

    async def publish(self, path: str, probe_ids: Sequence[int], timeout_s: float) -> WeightVersion:
        """A snapshot of the current weights on the node of rank 0."""
        return (await self._call("publish", timeout_s, path, list(probe_ids), self.node_id))[0]

    async def publish_on_device(
        self, sequence: int, probe_ids: Sequence[int], transport: str, timeout_s: float
    ) -> WeightVersion:
        """A copy of the current weights on the device of rank 0, from where workers are sent it."""
        arguments = (sequence, list(probe_ids), self.node_id, transport)
        return (await self._call("publish_on_device", timeout_s, *arguments))[0]

    async def call(self, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
        """Calls a method of every rank."""
        return await self._call(method, timeout_s, *arguments)

    async def close(self) -> None:
        """Ends all ranks."""
        for rank in self.ranks:
            ray.kill(rank, no_restart=True)

    async def _call(self, method: str, timeout_s: float, *arguments: Any, **named: Any) -> list[Any]:
        started = time.monotonic()
        try:
            return await self._gather(
                [rank.call.remote(method, *arguments, **named) for rank in self.ranks], timeout_s, method
            )
        finally:
            if method in ("update", "publish", "publish_on_device"):
                self.busy_s += time.monotonic() - started

    @staticmethod
    async def _gather(references: list[ray.ObjectRef], timeout_s: float, what: str) -> list[Any]:
        tasks = [asyncio.ensure_future(value_of(reference)) for reference in references]
        done, waiting = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        for index, task in enumerate(tasks):
            error = task.exception() if task in done else None
            if error is None:
                continue
            for other in waiting:
                other.cancel()
            if is_loss(error):
                raise LearnerError(
                    f"Learner rank {index} of {len(tasks)} died during {what!r} ({str(error).splitlines()[0]}); the same command continues "
                    "from the last checkpoint."
                ) from error
            raise error
        if waiting:
            missing = [index for index, task in enumerate(tasks) if task in waiting]
            for other in waiting:
                other.cancel()
            raise DeadlineError(f"Learner ranks {missing} did not finish {what!r} within {timeout_s:.0f} s.")
        return [task.result() for task in tasks]
