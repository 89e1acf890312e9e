"""The alarm on a sampler that no longer runs the learner's weights, what it must not ring for, and how it ends a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actors.coordinator import Coordinator
from actors.system_meter import SystemMeter
from rl_cluster.algorithms.objective import ObjectiveSettings, objective
from rl_cluster.algorithms.types import LossInputs
from rl_cluster.errors import SamplerDriftError
from rl_cluster.learning.drift_alarm import check_drift
from rl_cluster.learning.policy import PolicyInputs
from rl_cluster.learning.update_metrics import UpdateSums
from rl_cluster.learning.weight_version import WeightVersion
from rl_cluster.sequences.row import MIXED_VERSIONS, TrainingRow
from tests.unit.test_generation import TASKS, Method, Run, Worker, play_at_once


def metrics(versions: list[int], gaps: list[float], current: int = 4) -> dict[str, float]:
    """The metrics of an update whose learner differs by `gaps` from what the tokens' samplers recorded."""
    count = len(versions)
    sampler = torch.full((count,), -1.0)
    now = sampler + torch.tensor(gaps)
    zeros, index = torch.zeros(count), torch.zeros(count, dtype=torch.long)
    inputs = PolicyInputs(
        prefix_ids=index[:0],
        suffix_ids=index[None],
        positions=index,
        token_of=index,
        target_ids=index,
        behaviour_logprobs=sampler,
        advantages=zeros + 1,
        weights=zeros + 1,
        versions=torch.tensor(versions),
        episodes=index,
    )
    found = objective(LossInputs(now, sampler, inputs.advantages), ObjectiveSettings("ppo"), zeros)
    sums = UpdateSums(current_version=current)
    sums.add(inputs, now, zeros, found, 0.0)
    return UpdateSums.metrics(*sums.as_tensors())


def test_check_drift_own_tokens_far_from_the_learner_ring() -> None:
    with pytest.raises(
        SamplerDriftError, match=r"On 2 tokens .* differ by 0\.300 on average \(learner\.drift_alarm=0\.05\)"
    ):
        check_drift(metrics([4, 4, 3], [0.2, -0.4, 0.0]), 0.05)


def test_check_drift_older_versions_and_mixed_keys_do_not_ring() -> None:
    found = metrics([3, 3, MIXED_VERSIONS, 4], [2.0, -1.0, 3.0, 0.001])
    check_drift(found, 0.05)
    assert found["learner/own_version_tokens"] == 1
    assert found["learner/sampler_gap_max"] == 3.0


def test_check_drift_no_token_of_the_own_version_is_silent() -> None:
    check_drift(metrics([3, 2], [2.0, 2.0]), 0.05)


def test_check_drift_sampler_that_says_nothing_rings() -> None:
    with pytest.raises(SamplerDriftError, match="None of 2 sampled tokens has a log-prob"):
        check_drift(metrics([4, 4], [0.0, 0.0]) | {"learner/missing_logprobs": 2.0}, 0.05)
    check_drift(metrics([4, 4], [0.0, 0.0]) | {"learner/missing_logprobs": 1.0}, 0.05)


class Learner:
    """Simulated ranks that differ from the workers by one of `gaps` in each update."""

    def __init__(self, gaps: list[float]) -> None:
        self.gaps = gaps
        self.updates = 0
        self.busy_s = 0.0

    async def update(self, rows: Sequence[TrainingRow], settings: Any, timeout_s: float) -> dict[str, float]:
        versions = [int(version) for row in rows for version in row.weight_versions[row.loss_mask]]
        found = metrics(versions, [self.gaps[self.updates]] * len(versions), current=self.updates)
        self.updates += 1
        return found

    async def publish(self, path: str, probe_ids: Sequence[int], timeout_s: float) -> WeightVersion:
        return WeightVersion(self.updates, path, "node", 0, {})


def test_run_whose_sampler_drifts_ends_before_the_step_counts_and_ends_all_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step within the alarm, then one over it: its weights reach no worker, its groups are not trained."""
    monkeypatch.setattr("actors.generation.POLL_S", 0.01)
    monkeypatch.setattr("actors.generation.READY_POLL_S", 0.01)
    monkeypatch.setattr("ray.cancel", lambda reference: reference.cancel())
    worker = Worker(play_at_once)
    chosen = ["staleness.max_steps_off_policy=0", "learner.drift_alarm=0.05", f"output_dir={tmp_path}"]
    chosen += ["evaluation.test_at_start=false", "training.val_at_start=false", f"weight_sync.folder={tmp_path}"]
    run = Run(tmp_path, [worker], *chosen)
    learner: Any = Learner([0.01, 0.3])
    published: list[int] = []
    ended: list[str] = []

    async def publish(weights: WeightVersion) -> None:
        published.append(weights.version)
        worker.version = weights.version

    async def nothing() -> None:
        """Prepared by the test."""

    def ends(name: str) -> Callable[..., Any]:
        async def end(*arguments: Any) -> None:
            ended.append(name)

        return end

    def finish(tracker: Any, status: str) -> str:
        ended.append(status)
        return ""

    monkeypatch.setattr("actors.coordinator.stop_search", lambda app: ended.append("search"))
    monkeypatch.setattr("actors.coordinator.RunTracker.finish", finish)
    monkeypatch.setattr(run.pool, "close", ends("workers"))
    coordinator: Any = Coordinator.__ray_metadata__.modified_class(run.config)
    coordinator._prepare = coordinator._restore_or_warm_up = coordinator._start_workers = nothing
    coordinator.data = SimpleNamespace(run_id="run", probe_ids=[1, 2], train=list(TASKS.values()), train_by_id=TASKS)
    coordinator.queue, coordinator.ledger = run.generation.queue, run.ledger
    coordinator.pool, coordinator.buffer = run.pool, run.generation.buffer
    coordinator.policy, coordinator.limits = run.policy, run.generation.limits
    coordinator.learner, coordinator.meter = learner, SystemMeter(run.pool, learner)
    coordinator.sync = SimpleNamespace(publish=Method(publish), close=Method(ends("weight sync")))
    learner.close = ends("learner")
    with pytest.raises(SamplerDriftError, match=r"differ by 0\.300 on average \(learner\.drift_alarm=0\.05\)"):
        asyncio.run(coordinator.run())
    assert learner.updates == 2
    assert coordinator.completed_steps == len(coordinator.history) == 1
    assert run.ledger.summary()["trained"] == 2
    assert published == [0, 1]
    assert coordinator.generation.generating.done()
    assert coordinator.generation.in_flight == {}
    assert sorted(ended) == ["FAILED", "learner", "search", "weight sync", "workers"]
