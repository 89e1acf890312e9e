"""When an evaluation of a run may begin."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.evaluation_stage import EvaluationStage
from actors.event_log import EventLog
from actors.weight_sync import WeightSync
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import Outcome, WeightSyncError
from rl_cluster.learning.weight_version import WeightVersion
from rl_cluster.tracking.report import RunReport
from rl_cluster.tracking.run_tracker import RunTracker
from tests.helpers.configuration import load_config

DEADLINES = ["weight_sync.timeout_s=0.02", "rollout.start_timeout_s=0.03"]


class Pool:
    """Counts what is played."""

    def __init__(self) -> None:
        self.played = 0

    async def run_group(self, group_id: str, task: Task, size: int, limits: Any) -> list[Trajectory]:
        self.played += 1
        return [Trajectory("0" * 32, task.task_id, group_id, [], Outcome.TURN_LIMIT, index_id="index", reward=-1.0)]


def story(folder: Path, acknowledged: dict[str, int]) -> int:
    """How many episodes a validation under the second publication plays, with workers that run the given ones."""
    config = load_config([f"output_dir={folder}", "tracking=none", "evaluation.bootstrap_resamples=1000", *DEADLINES])
    pool, sync = Pool(), WeightSync.__ray_metadata__.modified_class()
    handle: Any = SimpleNamespace(wait_acknowledged=SimpleNamespace(remote=sync.wait_acknowledged))
    pool_handle: Any = pool
    tracker, report = RunTracker(config, folder, resumed=False), RunReport(config, folder, None)
    stage = EvaluationStage(config, pool_handle, handle, report, tracker, EventLog())

    async def validate() -> None:
        for worker in acknowledged:
            await sync.register(worker)
        for version in (0, 1):
            await sync.publish(WeightVersion(version, "", "node", 0, {}))
        for worker, sequence in acknowledged.items():
            await sync.acknowledge(worker, sequence)
        await stage.validate([Task("t", "prompt", "kb", {"d": 1.0})], 2, 1)

    try:
        asyncio.run(validate())
    finally:
        tracker.finish("FINISHED")
    return pool.played


def test_validation_under_the_newest_weights_of_all_workers_is_played(tmp_path: Path) -> None:
    assert story(tmp_path, {"worker-0": 2, "worker-1": 2}) == 1


def test_validation_with_a_worker_that_stays_behind_is_refused_naming_it(tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match=r"^worker-1 did not load the newest weights within .* = 0 s"):
        story(tmp_path, {"worker-0": 2, "worker-1": 1})


def test_validation_while_a_lost_worker_starts_again_goes_on_with_the_others(tmp_path: Path) -> None:
    """It is registered no more, and serves only once it has the newest weights."""
    assert story(tmp_path, {"worker-0": 2}) == 1
