"""Groups between queue and learner, with the real pool, buffer and ledger around simulated workers (invariants 4, 5, 6)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.event_log import EventLog
from actors.generation import Generation
from actors.rollout_pool import RolloutPool
from actors.trajectory_buffer import TrajectoryBuffer
from rl_cluster.config import Config
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import ClusterError, LearnerError, Outcome, RLClusterError
from rl_cluster.scheduling.ledger import TaskLedger
from rl_cluster.scheduling.staleness import StalenessPolicy
from rl_cluster.scheduling.task_queue import TaskQueue
from rl_cluster.scheduling.worker_health import HealthPolicy
from tests.helpers.configuration import load_config

TASKS = {f"t{number}": Task(f"t{number}", "?", "kb", {"d1": 1.0}) for number in range(60)}
Play = Callable[["Worker", str, int], Awaitable[list[Trajectory]]]


class Method:
    """A method as an actor's handle has it: `remote` starts it."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def remote(self, *arguments: Any) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.method(*arguments))


class Worker:
    """A simulated worker at a weight version; it remembers what it played and what was cancelled."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.version = 0
        self.played: list[str] = []
        self.cancelled: list[str] = []
        self.run_group, self.statistics = Method(self._run_group), Method(self._statistics)

    async def _run_group(self, group_id: str, task: Task, size: int, limits: Any) -> list[Trajectory]:
        self.played.append(group_id)
        try:
            return await self.play(self, group_id, size)
        except asyncio.CancelledError:
            self.cancelled.append(group_id)
            raise

    async def _statistics(self) -> dict[str, float]:
        return {"version": float(self.version)}


def episode(
    group_id: str, version: int, reward: float, outcome: Outcome = Outcome.FINISHED, tokens: int = 2
) -> Trajectory:
    sampled = list(range(tokens))
    turn = Turn([1], sampled, [-0.1] * tokens, [version] * tokens)
    return Trajectory(
        f"{group_id}/{reward}", group_id.partition(":")[2], group_id, [turn], outcome, reward, error="why"
    )


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.generation.READY_POLL_S", 0.01)


async def play_at_once(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
    version = worker.version
    await asyncio.sleep(0.001)
    return [episode(group_id, version, float(number)) for number in range(size)]


class Run:
    """A run of simulated steps over real bookkeeping."""

    def __init__(self, folder: Path, workers: list[Worker], *overrides: str) -> None:
        small = [
            "training.global_batch_size=2",
            "training.group_size=2",
            "training.max_steps=6",
            "training.max_epochs=1",
        ]
        self.config: Config = load_config([*small, "tracking=none", *overrides])
        training = self.config.training
        self.ledger = TaskLedger(list(TASKS), 0, training.max_epochs)
        queue = TaskQueue(self.ledger, None)
        self.policy = StalenessPolicy(self.config.staleness.max_steps_off_policy, training.global_batch_size)
        settings: Any = SimpleNamespace(rollout_max_retries=0, rollout_timeout=60.0, index_ids={"kb": "i"})
        self.log = EventLog()
        self.workers = workers
        self.pool = RolloutPool(settings, len(workers), 16, {}, None, HealthPolicy(), self.log.say)
        for known, worker in zip(self.pool.workers, workers, strict=True):
            known.actor = worker
            known.health.on_started(0.0, 0)
            known.health.on_synced(0.0, 0, worker.version)
        kept: Any = TrajectoryBuffer.__ray_metadata__.modified_class(str(folder / "journal.bin"), self.policy)
        names = ("put", "sweep", "take", "size")
        buffer = SimpleNamespace(**{name: Method(getattr(kept, name)) for name in names})
        tracker: Any = SimpleNamespace(count=lambda name: None)
        limits: Any = None
        self.generation = Generation(
            self.config, TASKS, queue, self.pool, buffer, self.policy, limits, 0, self.log, tracker
        )
        self.ages: list[int] = []

    async def steps(self, after_step: Callable[[int], None] = lambda step: None) -> None:
        """Takes groups, trains them and publishes, until the last step or the last group."""
        self.generation.start()
        try:
            for step in range(1, self.config.training.max_steps + 1):
                async with asyncio.timeout(10):
                    groups = await self.generation.next_groups()
                if groups is None:
                    return
                versions = [t.oldest_version for group in groups.values() for t in group]
                self.ages += [step - 1 - version for version in versions if version is not None]
                await asyncio.sleep(0.005)
                for group_id in groups:
                    self.ledger.train(group_id, step)
                self.generation.advance(step)
                after_step(step)
                await self.pool.refresh()
                self.generation.wake.set()
        finally:
            await self.generation.stop()

    def publish_to(self, *workers: Worker) -> Callable[[int], None]:
        def publish(step: int) -> None:
            for worker in workers:
                worker.version = step

        return publish

    @property
    def texts(self) -> list[str]:
        return [event["text"] for event in self.log.since(0)]


@pytest.fixture(autouse=True)
def cancel_as_ray_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.cancel", lambda reference: reference.cancel())


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_generation_ages_keep_to_the_bound_and_reach_it(tmp_path: Path, lag: int) -> None:
    """Groups of very different lengths, over weights that arrive after every step."""
    chance = random.Random(lag)

    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        version = worker.version
        await asyncio.sleep(chance.choice([0.001, 0.002, 0.03]))
        return [episode(group_id, version, float(number)) for number in range(size)]

    worker = Worker(play)
    run = Run(tmp_path, [worker], f"staleness.max_steps_off_policy={lag}", "training.max_steps=12")
    asyncio.run(run.steps(run.publish_to(worker)))
    summary = run.ledger.summary()
    assert summary["trained"] == 24
    assert summary["dropped"] == 0
    assert max(run.ages) == lag


def test_generation_worker_that_lags_holds_back_nobody_and_gets_nothing_too_old(tmp_path: Path) -> None:
    fresh, stuck = Worker(play_at_once), Worker(play_at_once)
    run = Run(tmp_path, [fresh, stuck], "staleness.max_steps_off_policy=1", "training.max_steps=8")
    asyncio.run(run.steps(run.publish_to(fresh)))
    assert run.ledger.summary()["trained"] == 16
    assert max(run.ages) <= 1
    assert len(fresh.played) > len(stuck.played)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_generation_straggler_is_cancelled_and_its_place_taken(tmp_path: Path, lag: int) -> None:
    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        if len(worker.played) == 2:
            await asyncio.Event().wait()
        return await play_at_once(worker, group_id, size)

    worker = Worker(play)
    overrides = [f"staleness.max_steps_off_policy={lag}", "training.straggler_timeout_s=0.3"]
    run = Run(tmp_path, [worker], *overrides)
    asyncio.run(run.steps(run.publish_to(worker)))
    summary = run.ledger.summary()
    assert summary["dropped_by_reason"] == {"straggler": 1}
    assert summary["trained"] == 12
    assert worker.cancelled == [worker.played[1]]
    assert any("a step waited over training.straggler_timeout_s=0.3 s for it" in text for text in run.texts)


def test_generation_group_that_was_long_under_way_before_a_step_waited_for_it_is_still_waited_for(
    tmp_path: Path,
) -> None:
    first: list[str] = []
    steps_done = asyncio.Event()

    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        if not first:
            first.append(group_id)
            await steps_done.wait()
        return await play_at_once(worker, group_id, size)

    worker = Worker(play)
    run = Run(tmp_path, [worker], "staleness.max_steps_off_policy=3", "training.straggler_timeout_s=0.2")
    publish = run.publish_to(worker)

    def after_step(step: int) -> None:
        publish(step)
        if step == 3:  # now the next step needs the first group, which is older than the limit
            time.sleep(0.25)
            asyncio.get_running_loop().call_later(0.05, steps_done.set)

    asyncio.run(run.steps(after_step))
    assert run.ledger.summary()["dropped"] == 0
    assert run.ledger.summary()["trained"] == 12
    assert worker.cancelled == []


def test_generation_stragglers_alone_end_the_run(tmp_path: Path) -> None:
    """An engine that hangs answers its heartbeats; groups that end while others are given up are no error."""

    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        await asyncio.Event().wait()
        raise AssertionError

    run = Run(tmp_path, [Worker(play)], "staleness.max_steps_off_policy=0", "training.straggler_timeout_s=0.1")
    with pytest.raises(ClusterError, match=r"^4 groups in a row .* \(4 straggler\): a step waited over training"):
        asyncio.run(run.steps())


def fail(outcome: Outcome, tokens: int) -> Play:
    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        await asyncio.sleep(0.001)
        return [episode(group_id, 0, 0.0, outcome, tokens) for _ in range(size)]

    return play


@pytest.mark.parametrize(
    ("outcome", "error", "said"),
    [
        (
            Outcome.TOOL_UNAVAILABLE,
            ClusterError,
            r"^8 groups in a row .* \(16 tool_unavailable\): tool_unavailable: why",
        ),
        (
            Outcome.SEQUENCE_LIMIT,
            LearnerError,
            r"^8 groups in a row .* \(16 sequence_limit\): trajectories 0:t.*no reply was sampled",
        ),
    ],
)
def test_generation_group_after_group_lost_ends_the_run(
    tmp_path: Path, outcome: Outcome, error: type[RLClusterError], said: str
) -> None:
    """A dead search service must not use up the epochs and end as a success."""
    run = Run(tmp_path, [Worker(fail(outcome, 0))], "staleness.max_steps_off_policy=1")
    with pytest.raises(error, match=said):
        asyncio.run(run.steps())
    assert run.ledger.summary()["dropped"] >= 8


def test_generation_losses_between_good_groups_are_dropped_and_the_run_goes_on(tmp_path: Path) -> None:
    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        if len(worker.played) % 2:
            return await fail(Outcome.TOOL_TIMEOUT, 1)(worker, group_id, size)
        return await play_at_once(worker, group_id, size)

    worker = Worker(play)
    run = Run(tmp_path, [worker], "training.max_steps=10")
    asyncio.run(run.steps(run.publish_to(worker)))
    summary = run.ledger.summary()
    assert summary["trained"] == 20
    assert summary["dropped_by_reason"]["infrastructure"] >= 18


def test_generation_group_without_signal_is_replaced(tmp_path: Path) -> None:
    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        spread = len(worker.played) % 3 == 0
        return [episode(group_id, worker.version, float(number * spread)) for number in range(size)]

    worker = Worker(play)
    run = Run(tmp_path, [worker], "training.drop_groups_without_signal=true")
    asyncio.run(run.steps(run.publish_to(worker)))
    summary = run.ledger.summary()
    assert summary["trained"] == 12
    assert summary["dropped_by_reason"]["no_signal"] >= 20


def test_generation_group_whose_best_are_equal_is_replaced_under_grpo_passk(tmp_path: Path) -> None:
    """Their rewards differ, and still no episode has an advantage."""

    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        tied = len(worker.played) % 3
        return [episode(group_id, worker.version, reward) for reward in ([0.0, 1.0, 1.0] if tied else [0.0, 0.5, 1.0])]

    worker = Worker(play)
    run = Run(
        tmp_path,
        [worker],
        "training.drop_groups_without_signal=true",
        "algorithm/advantage=grpo_passk",
        "training.group_size=3",
    )
    asyncio.run(run.steps(run.publish_to(worker)))
    summary = run.ledger.summary()
    assert summary["trained"] == 12
    assert summary["dropped_by_reason"]["no_signal"] >= 20


def test_generation_of_large_groups_trains_the_ends(tmp_path: Path) -> None:
    worker = Worker(play_at_once)
    run = Run(tmp_path, [worker], "training.group_size=5", "training.trained_per_group=2", "training.max_steps=1")

    async def groups() -> list[list[Trajectory]]:
        run.generation.start()
        taken = await run.generation.next_groups()
        await run.generation.stop()
        return list((taken or {}).values())

    for group in asyncio.run(groups()):
        assert [(played.reward, played.left_out) for played in group] == [
            (0.0, False), (1.0, True), (2.0, True), (3.0, True), (4.0, False),
        ]  # fmt: skip


def test_generation_episodes_lost_from_a_group_leave_the_others(tmp_path: Path) -> None:
    async def play(worker: Worker, group_id: str, size: int) -> list[Trajectory]:
        group = await play_at_once(worker, group_id, size + 1)
        group[0].outcome = Outcome.ENGINE_ERROR
        return group

    worker = Worker(play)
    run = Run(tmp_path, [worker], "training.max_steps=2")
    asyncio.run(run.steps(run.publish_to(worker)))
    assert run.ledger.summary()["trained"] == 4
    assert len(run.ages) == 8
