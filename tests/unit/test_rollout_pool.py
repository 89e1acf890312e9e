"""The pool: room over several workers, and workers that are lost, started again, late, or gone for good.

A simulated process runs the real worker, its pull of weights and its engine's proof of them; only the model is simulated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from actors.rollout_pool import RolloutPool
from actors.rollout_worker import RolloutWorker
from actors.weight_sync import WeightSync
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.episode import EpisodeLimits
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import ClusterError, DeadlineError, RLClusterError
from rl_cluster.inference.engine import EngineSettings, InferenceEngine
from rl_cluster.learning.weight_version import Probe, WeightVersion
from rl_cluster.scheduling.worker_health import HealthPolicy
from tests.unit.test_generation import Run, Worker, episode
from tests.unit.test_lost_actors import raised_remotely

TASK = Task("t1", "?", "kb", {"d1": 1.0})
LIMITS = EpisodeLimits(8, 64, 1.0, 1.0)
HEALTH = HealthPolicy(max_restarts=2)
DIFFERS = "Engine and learner differ by 1.00e+00 on the probe sequence (allowed 1e-03); restart the engine."
RealWorker: Any = RolloutWorker.__ray_metadata__.modified_class
RealSync: Any = WeightSync.__ray_metadata__.modified_class


def settings() -> Any:
    return SimpleNamespace(
        rollout_max_retries=1, rollout_timeout=60.0, index_ids={"kb": "i"}, start_timeout_s=30.0, sync_timeout_s=30.0
    )


def weights(version: int) -> WeightVersion:
    return WeightVersion(version, "", "node", 0, {}, Probe((1, 2), (-1.0 - version,)))


class Model:
    """Holds the version that it took last; what is sent to one that `refuses` it is lost without a word."""

    def __init__(self, refuses: int | None) -> None:
        self.refuses = refuses
        self.held = -1
        self.story: list[str] = []

    def take(self, version: int) -> None:
        if version != self.refuses:
            self.held = version

    async def resume_generation(self) -> None:
        """vLLM's engine has it."""

    def shutdown(self, timeout: float | None) -> None:
        assert timeout == 0.0  # its loop is not kept waiting
        self.story.append("is shut down")


class Engine(InferenceEngine):
    async def score(self, token_ids: list[int]) -> list[float]:
        self.llm.story.append(f"proves {self.llm.held}")
        return [-1.0 - self.llm.held]


class Simulated(RealWorker):
    """A worker whose episodes end at once, or never where it is `stuck`."""

    def __init__(
        self, worker_id: str, chosen: Any, sync: Any, model: Model, stuck: bool, may_start: asyncio.Event
    ) -> None:
        super().__init__(worker_id, chosen, sync)
        self.model = model
        self.stuck = stuck
        self.may_start = may_start
        self.playing = asyncio.Event()

    async def start(self) -> str:
        await self.may_start.wait()
        self.engine = Engine(EngineSettings("", 64), self.model)
        await self.sync.register.remote(self.worker_id)
        return "plain"

    def _read(self, publication: Any) -> Any:
        async def deliver() -> None:
            self.model.take(publication.weights.version)

        return deliver

    async def _episode(self, group_id: str, task: Task, limits: EpisodeLimits) -> Trajectory:
        version = self.engine.version
        self.model.story.append(f"plays {version}")
        self.playing.set()
        if self.stuck:
            await asyncio.Event().wait()
        return episode(group_id, version, 1.0)


class Process:
    """An actor as its handle shows it; `kill` ends what runs in it, as Ray does."""

    def __init__(self, served: Any) -> None:
        self.served = served
        self.dead = False
        self.calls: list[asyncio.Task[Any]] = []

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> asyncio.Task[Any]:
        self.calls.append(asyncio.ensure_future(self._run(name, arguments)))
        return self.calls[-1]

    async def _run(self, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            if self.dead:
                raise ActorDiedError
            return await getattr(self.served, name)(*arguments)
        except asyncio.CancelledError:
            if self.dead:
                raise ActorDiedError from None
            raise
        except RLClusterError as error:
            raise raised_remotely(error) from error

    def kill(self) -> None:
        self.dead = True
        for call in self.calls:
            call.cancel()


class Fleet:
    """Stands in for Ray: starts a process for each worker that the pool asks for.

    `refuses`: a version that the first `faulty` processes do not take; `stuck`: how many never end an episode.
    """

    def __init__(self) -> None:
        self.refuses, self.faulty, self.stuck = 1, 1, 1
        self.processes: list[Process] = []
        self.said: list[str] = []

    def options(self, **options: Any) -> Fleet:
        return self

    def remote(self, worker_id: str, chosen: Any, sync: Any) -> Process:
        number = len(self.processes)
        model = Model(self.refuses if number < self.faulty else None)
        served = Simulated(worker_id, chosen, sync, model, number < self.stuck, self.may_start)
        self.processes.append(Process(served))
        return self.processes[-1]

    def pool(self, workers: int = 1, health: HealthPolicy = HEALTH, max_concurrency: int = 16) -> RolloutPool:
        """Over weights of version 0, which every process takes."""
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.sync = Process(RealSync())
        return RolloutPool(settings(), workers, max_concurrency, {}, self.sync, health, self.said.append)

    async def publish(self, version: int) -> None:
        await self.sync.served.publish(weights(version))

    def story(self, number: int) -> list[str]:
        return self.processes[number].served.model.story


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    made = Fleet()
    monkeypatch.setattr("actors.rollout_pool.RolloutWorker", made)
    monkeypatch.setattr("ray.kill", lambda actor, no_restart: actor.kill())
    monkeypatch.setattr("ray.cancel", lambda reference: reference.cancel())
    return made


def told(story: Coroutine[Any, Any, Any]) -> Any:
    """What a story ends with; one that hangs fails."""

    async def limited() -> Any:
        async with asyncio.timeout(10):
            return await story

    return asyncio.run(limited())


@pytest.mark.parametrize(("limit", "size", "most"), [(8, 3, 6), (6, 3, 6), (2, 3, 3), (12, 2, 12)])
def test_pool_more_groups_than_room_fill_the_workers_evenly_and_no_further(limit: int, size: int, most: int) -> None:
    """A group over the limit is played alone."""

    async def story() -> None:
        gate, peak = asyncio.Event(), 0

        async def play(worker: Worker, group_id: str, number: int) -> list[Trajectory]:
            nonlocal peak
            peak = max(peak, pool.under_way)
            await gate.wait()
            return [episode(group_id, 0, 1.0)] * number

        workers = [Worker(play) for _ in range(3)]
        pool = serving(workers, limit)
        assert pool.room(size) == max(1, limit // size)
        groups = [asyncio.create_task(pool.run_group(f"g{n}", TASK, size, LIMITS)) for n in range(20)]
        for _ in range(10):
            await asyncio.sleep(0)
        loads = [worker.under_way for worker in pool.workers]
        assert sum(loads) == pool.under_way == most
        assert max(loads) - min(loads) <= size
        assert pool.room(size) == 0
        assert pool.version_with_room(size, 0) is None
        gate.set()
        assert [len(group) for group in await asyncio.gather(*groups)] == [size] * 20
        assert peak == most
        assert sorted(group for worker in workers for group in worker.played) == sorted(f"g{n}" for n in range(20))

    told(story())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pool_groups_of_many_sizes_some_cancelled_or_failed_keep_the_limit_and_free_their_room(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("ray.cancel", lambda reference: reference.cancel())
    chance = random.Random(seed)

    async def story() -> None:
        peak = 0

        async def play(worker: Worker, group_id: str, number: int) -> list[Trajectory]:
            nonlocal peak
            peak = max(peak, sum(known.under_way for known in pool.workers))
            for _ in range(chance.randrange(9)):
                await asyncio.sleep(0)
            if chance.random() < 0.2:
                raise ValueError(group_id)
            return [episode(group_id, 0, 1.0)] * number

        pool = serving([Worker(play) for _ in range(3)], 7)
        groups = []
        for number in range(60):
            groups.append(asyncio.create_task(pool.run_group(f"g{number}", TASK, chance.randrange(1, 6), LIMITS)))
            if chance.random() < 0.3:
                await asyncio.sleep(0)
                chance.choice(groups).cancel()
        results = await asyncio.gather(*groups, return_exceptions=True)
        assert {type(result) for result in results} == {list, ValueError, asyncio.CancelledError}
        assert 5 <= peak <= 7
        assert pool.under_way == 0
        assert [worker.under_way for worker in pool.workers] == [0, 0, 0]

    told(story())


def serving(workers: list[Worker], max_concurrency: int) -> RolloutPool:
    """A pool whose workers are ready."""
    pool = RolloutPool(settings(), len(workers), max_concurrency, {}, None, HEALTH, lambda text: None)
    for known, worker in zip(pool.workers, workers, strict=True):
        known.actor = worker
        known.health.on_started(0.0, 0)
        known.health.on_synced(0.0, 0, 0)
    return pool


def test_pool_worker_whose_sync_fails_is_replaced_by_one_that_proves_the_newest_weights_before_it_plays(
    fleet: Fleet,
) -> None:
    """Version 1 does not arrive at the first process, whose group is under way; version 2 comes while the second starts."""

    async def story() -> list[Trajectory]:
        pool = fleet.pool()
        await fleet.publish(0)
        await pool.start()
        group = asyncio.create_task(pool.run_group("g1", TASK, 2, LIMITS))
        await fleet.processes[0].served.playing.wait()
        fleet.may_start.clear()
        await fleet.publish(1)
        while len(fleet.processes) < 2:
            await asyncio.sleep(0)
        assert pool.room(2) == 0
        assert fleet.processes[0].dead
        await fleet.publish(2)
        fleet.may_start.set()
        played = await group
        assert pool.under_way == 0
        await pool.close()
        return played

    played = told(story())
    assert [trajectory.oldest_version for trajectory in played] == [2, 2]
    assert fleet.story(0) == ["proves 0", "plays 0", "plays 0", "proves 0"]
    assert fleet.story(1) == ["proves 2", "plays 2", "plays 2", "is shut down"]
    assert fleet.said == [f"worker-0 is lost: {DIFFERS[:-1]}", "worker-0 is started again (1 restarts left)"]


def test_pool_replacement_that_fails_its_probe_plays_nothing_and_is_replaced_too(fleet: Fleet) -> None:
    fleet.faulty = 2

    async def story() -> list[Trajectory]:
        pool = fleet.pool()
        await fleet.publish(0)
        await pool.start()
        group = asyncio.create_task(pool.run_group("g1", TASK, 2, LIMITS))
        await fleet.processes[0].served.playing.wait()
        await fleet.publish(1)
        return await group

    assert [trajectory.oldest_version for trajectory in told(story())] == [1, 1]
    assert fleet.story(1) == ["proves -1"]
    assert fleet.story(2) == ["proves 1", "plays 1", "plays 1"]
    assert [text.partition(":")[0] for text in fleet.said] == [
        "worker-0 is lost",
        "worker-0 is started again (1 restarts left)",
        "worker-0 is lost",
        "worker-0 is started again (0 restarts left)",
    ]


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (False, "Engine and learner differ by 2.00e+00 on the probe sequence"),
        (True, "worker-0 did not start within rollout.start_timeout_s=0 s"),
    ],
)
def test_pool_all_workers_failed_for_good_end_the_run_with_the_reason(
    fleet: Fleet, tmp_path: Path, late: bool, reason: str
) -> None:
    """The budget of one restart is used up by a replacement that fails its probe, or is late."""
    fleet.faulty = 2
    run = Run(tmp_path, [])

    async def story() -> None:
        pool = run.pool = run.generation.pool = fleet.pool(health=HealthPolicy(max_restarts=1))
        await fleet.publish(0)
        await pool.start()
        steps = asyncio.create_task(run.steps())
        await fleet.processes[0].served.playing.wait()
        if late:
            pool.settings.start_timeout_s = 0.01  # type: ignore[misc]
            fleet.may_start.clear()
        await fleet.publish(1)
        await steps

    with pytest.raises(ClusterError) as caught:
        told(story())
    assert str(caught.value).startswith(f"worker-0 failed for good, after rollout.max_restarts=1 restarts: {reason}")
    assert len(fleet.processes) == 2
    assert all(process.dead for process in fleet.processes)
    assert run.ledger.summary()["trained"] == 0


def test_pool_worker_failed_for_good_is_said_and_leaves_its_work_to_the_others(fleet: Fleet) -> None:
    async def story() -> list[Trajectory]:
        pool = fleet.pool(workers=2, health=HealthPolicy(max_restarts=0))
        await fleet.publish(0)
        await pool.start()
        groups = [asyncio.create_task(pool.run_group(f"g{n}", TASK, 1, LIMITS)) for n in range(4)]
        await fleet.processes[0].served.playing.wait()
        await fleet.publish(1)
        played = [trajectory for group in await asyncio.gather(*groups) for trajectory in group]
        assert pool.failure is None
        return played

    assert len(told(story())) == 4
    assert len(fleet.processes) == 2
    assert fleet.said == [
        f"worker-0 is lost: {DIFFERS[:-1]}",
        f"worker-0 failed for good, after rollout.max_restarts=0 restarts: {DIFFERS[:-1]}",
    ]


def test_pool_watcher_that_dies_ends_those_who_wait_for_a_worker(fleet: Fleet) -> None:
    """The weight sync is gone when the only worker must be replaced, and nothing else would wake who waits."""

    async def story() -> None:
        pool = fleet.pool(max_concurrency=2)
        await fleet.publish(0)
        await pool.start()
        groups = [asyncio.create_task(pool.run_group(f"g{n}", TASK, 2, LIMITS)) for n in range(2)]
        await fleet.processes[0].served.playing.wait()
        fleet.sync.kill()
        await groups[1]

    with pytest.raises(ClusterError, match="The weight sync is gone"):
        told(story())


def test_pool_worker_that_goes_silent_is_said_to_be_lost_and_replaced(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.rollout_pool.MONITOR_INTERVAL_S", 0.005)

    async def silent() -> dict[str, float]:
        await asyncio.Event().wait()
        raise AssertionError

    async def story() -> None:
        pool = fleet.pool(health=HealthPolicy(suspect_after_s=0.01, dead_after_s=0.01))
        await fleet.publish(0)
        await pool.start()
        fleet.processes[0].served.statistics = silent
        while len(fleet.processes) < 2:
            await asyncio.sleep(0.001)

    told(story())
    assert fleet.said[:2] == [
        "worker-0 is lost: no heartbeat for 0.02 s",
        "worker-0 is started again (2 restarts left)",
    ]
    assert fleet.processes[0].dead


@pytest.mark.parametrize("step", ["start", "apply"])
def test_pool_worker_that_does_not_start_in_time_is_named(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def hang(*arguments: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Simulated, step, hang)

    async def story() -> None:
        pool = fleet.pool()
        pool.settings.start_timeout_s = 0.01  # type: ignore[misc]
        await fleet.publish(0)
        await pool.start()

    with pytest.raises(
        DeadlineError, match=r"^worker-0 did not start within rollout\.start_timeout_s=0 s; is its node alive"
    ):
        told(story())
