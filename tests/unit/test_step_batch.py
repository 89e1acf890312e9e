"""Groups of trajectories to rows with advantages, and the metrics of a step (invariants 6, 7, 9)."""

from __future__ import annotations

import numpy as np
import pytest

from rl_cluster.algorithms.types import AdvantageSettings
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import LearnerError, Outcome
from rl_cluster.learning.batch import build_step_batch
from rl_cluster.learning.settings import learning_rate_factor


def episode(name: str, group: str, reward: float, version: int = 3, outcome: Outcome = Outcome.FINISHED) -> Trajectory:
    first = Turn([1, 2, 3], [4, 5], [-0.5, -0.25], [version, version])
    first.tool_calls = [ToolCall("bm25_search", {}, "the query is empty")]
    second = Turn([1, 2, 3, 4, 5, 6], [7], [-1.0], [version + 1])
    return Trajectory(name, group, group, [first, second], outcome, reward=reward)


def test_step_batch_three_turn_groups_give_every_sampled_token_its_advantage() -> None:
    groups = {
        "g": [episode("a", "g", 1.0), episode("b", "g", 0.0)],
        "h": [episode("c", "h", 0.5), episode("d", "h", 0.5)],
    }
    batch = build_step_batch(groups, "group_based", AdvantageSettings(normalize_std=False), completed_steps=5)
    by_name = {row.trajectory_id: row for row in batch.rows}
    assert len(batch.rows) == 4
    assert by_name["a"].advantages.tolist() == [0, 0, 0, 0.5, 0.5, 0, 0.5]
    assert by_name["b"].advantages.tolist() == [0, 0, 0, -0.5, -0.5, 0, -0.5]
    assert not np.any(by_name["c"].advantages)
    assert batch.metrics["staleness/age_max"] == 2
    assert batch.metrics["analysis/zero_adv_groups"] == 1
    assert batch.metrics["rollout/malformed_calls"] == 1
    assert batch.metrics["training/broken_prefixes"] == 0
    assert batch.metrics["training/trainable_token_positions"] == 12


def test_step_batch_policy_failures_are_counted_and_keep_their_reward() -> None:
    groups = {"g": [episode("a", "g", -1.0, outcome=Outcome.TURN_LIMIT), episode("b", "g", 1.0)]}
    metrics = build_step_batch(groups, "rloo", AdvantageSettings(), 3).metrics
    assert metrics["rollout/failure_rate"] == 0.5
    assert metrics["rollout/outcome/turn_limit"] == 0.5
    assert metrics["rollout/reward/mean"] == 0.0


def test_step_batch_without_trainable_token_stops_naming_trajectory_and_outcome() -> None:
    empty = Trajectory("lost-one", "g", "g", [], Outcome.NO_ANSWER, reward=-1.0)
    with pytest.raises(LearnerError, match=r"lost-one \(no_answer\)"):
        build_step_batch({"g": [empty, empty]}, "rloo", AdvantageSettings(), 0)


def test_learning_rate_factor_each_schedule_starts_low_and_ends_at_its_floor() -> None:
    assert learning_rate_factor("constant", 0, 10, 4) == pytest.approx(0.2)
    assert learning_rate_factor("constant", 9, 10, 4) == 1.0
    assert learning_rate_factor("linear", 10, 10, 0) == pytest.approx(0.1)
    assert learning_rate_factor("cosine", 0, 10, 0) == pytest.approx(1.0)
    assert learning_rate_factor("cosine", 10, 10, 0) == pytest.approx(0.1)
