"""A worker or a rank that is gone, however Ray says so, told from an error that it raised itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    NodeDiedError,
    OutOfMemoryError,
    RayTaskError,
    WorkerCrashedError,
)

from actors import run_parts
from actors.learner import LearnerGroup
from actors.remote import ask
from actors.rollout_pool import RolloutPool
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.episode import EpisodeLimits
from rl_cluster.errors import ClusterError, DeadlineError, EngineError, LearnerError, RewardError
from rl_cluster.scheduling.worker_health import HealthPolicy, WorkerState
from tests.helpers.configuration import load_config

TASK = Task("t1", "?", "kb", {"d1": 1.0})
LIMITS = EpisodeLimits(8, 64, 1.0, 1.0)
GONE = [
    ActorDiedError(),
    ActorUnavailableError("the connection broke", None),
    OutOfMemoryError("Task was killed due to the node running low on memory."),
    NodeDiedError("The node died."),
    WorkerCrashedError(),
]


def raised_remotely(cause: Exception) -> Exception:
    """`cause` as Ray hands it to the caller of an actor that raised it."""
    return RayTaskError("run_group", "Traceback", cause, "worker", 1, "127.0.0.1").as_instanceof_cause()


class Worker:
    """The first group that it is given fails with `error`; None: it never answers."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.run_group = SimpleNamespace(remote=lambda *arguments: asyncio.ensure_future(self._play()))

    async def _play(self) -> list[Any]:
        if self.error is None:
            await asyncio.Event().wait()
        assert self.error is not None
        raise self.error


def play_one_group(error: Exception | None) -> tuple[RolloutPool, list[str], list[str]]:
    """One group over two workers, of which the first fails; what came of it, and what was said."""
    said: list[str] = []
    settings: Any = SimpleNamespace(rollout_max_retries=1, rollout_timeout=60.0, index_ids={"kb": "i"})

    async def run() -> tuple[RolloutPool, list[Any]]:
        pool = RolloutPool(settings, 2, 16, {}, None, HealthPolicy(), said.append)
        second = SimpleNamespace(run_group=SimpleNamespace(remote=lambda *arguments: asyncio.sleep(0, ["played"])))
        for known, actor in zip(pool.workers, (Worker(error), second), strict=True):
            known.actor = actor
            known.health.on_started(0.0, 0)
            known.health.on_synced(0.0, 0, 1)
        return pool, await pool.run_group("g1", TASK, 2, LIMITS)

    pool, played = asyncio.run(run())
    return pool, played, said


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_run_group_worker_that_is_gone_is_lost_and_another_plays(error: Exception) -> None:
    pool, played, said = play_one_group(error)
    assert played == ["played"]
    assert [worker.health.state for worker in pool.workers] == [WorkerState.DEAD, WorkerState.HEALTHY]
    assert said == [f"worker-0 is lost: {str(error).splitlines()[0].removesuffix('.')}"]
    assert pool.under_way == 0


@pytest.mark.parametrize(
    "cause", [EngineError("the engine is broken"), TimeoutError("a disk did not answer")], ids=["engine", "timeout"]
)
def test_run_group_worker_that_raises_what_ends_it_is_lost_by_its_own_words(cause: Exception) -> None:
    _, played, said = play_one_group(raised_remotely(cause))
    assert played == ["played"]
    assert said == [f"worker-0 is lost: {cause}"]


def test_run_group_worker_that_never_answers_is_lost_by_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RolloutPool, "_group_deadline_s", 0.01)
    _, played, said = play_one_group(None)
    assert played == ["played"]
    assert said == ["worker-0 is lost: a group took over 0 s"]


@pytest.mark.parametrize("cause", [RewardError("no reward"), NodeDiedError("another node")], ids=["reward", "node"])
def test_run_group_other_error_that_a_worker_raised_reaches_the_caller(cause: Exception) -> None:
    with pytest.raises(RayTaskError) as caught:
        play_one_group(raised_remotely(cause))
    assert caught.value.cause is cause


async def failed(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_ask_actor_that_is_gone_is_named_with_the_mend(error: Exception) -> None:
    with pytest.raises(ClusterError, match=r"^The buffer is gone \(.*\); the same command starts it again"):
        asyncio.run(ask("The buffer", failed(error)))


def test_ask_error_that_the_actor_raised_is_handed_on_and_silence_is_a_deadline() -> None:
    error = raised_remotely(LearnerError("a loss that is not finite"))
    with pytest.raises(LearnerError) as caught:
        asyncio.run(ask("The buffer", failed(error)))
    assert caught.value is error
    with pytest.raises(DeadlineError, match="The buffer did not answer within 0 s"):
        asyncio.run(ask("The buffer", asyncio.sleep(60), 0.01))


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_pool_worker_that_dies_at_the_start_is_named_with_the_mend(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin() -> None:
        pool = RolloutPool(SimpleNamespace(), 2, 16, {}, None, HealthPolicy(), print)  # type: ignore[arg-type]
        monkeypatch.setattr(
            pool, "_start", lambda worker: failed(error) if worker.worker_id == "worker-1" else asyncio.sleep(0)
        )
        await pool.start()

    with pytest.raises(
        ClusterError, match=r"^worker-1 died while it started \(.*\), most likely for lack of memory; give"
    ):
        asyncio.run(begin())


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_index_builder_that_is_gone_is_named_with_the_mend(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = SimpleNamespace(remote=lambda *arguments: failed(error))
    monkeypatch.setattr(run_parts, "build_index", SimpleNamespace(options=lambda **options: task))
    with pytest.raises(ClusterError, match=r"^The process that built the index of kb died \(.*; give its node more"):
        asyncio.run(run_parts._build(load_config([]), tmp_path, "kb", ["en"]))


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_learner_group_rank_that_is_gone_is_named(error: Exception) -> None:
    calls: list[Any] = [asyncio.sleep(60), failed(error)]
    with pytest.raises(LearnerError, match=r"^Learner rank 1 of 2 died during 'update' \(.*the same command continues"):
        asyncio.run(LearnerGroup._gather(calls, 60.0, "update"))


def test_learner_group_error_that_a_rank_raised_is_handed_on() -> None:
    error = raised_remotely(LearnerError("a loss that is not finite"))
    with pytest.raises(LearnerError) as caught:
        asyncio.run(LearnerGroup._gather([failed(error)], 60.0, "update"))  # type: ignore[list-item]
    assert caught.value is error
