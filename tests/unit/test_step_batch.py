"""Groups of trajectories to rows with advantages, and the metrics of a step (invariants 6, 7, 9)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rl_cluster.algorithms.advantages import advantage_names
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


def test_step_batch_episode_left_out_is_counted_and_not_trained() -> None:
    group = [episode("a", "g", 1.0), episode("b", "g", 0.4), episode("c", "g", 0.0)]
    group[1].left_out = True
    batch = build_step_batch({"g": group}, "group_based", AdvantageSettings(normalize_std=False), 3)
    assert [row.trajectory_id for row in batch.rows] == ["a", "c"]
    assert batch.rows[0].advantages.max() == 0.5  # against the mean of what is trained
    assert batch.metrics["training/num_trajectories"] == 2
    assert batch.metrics["rollout/reward/mean"] == pytest.approx(1.4 / 3)
    assert batch.metrics["rollout/malformed_calls"] == 1


def test_step_batch_policy_failures_are_counted_and_keep_their_reward() -> None:
    groups = {"g": [episode("a", "g", -1.0, outcome=Outcome.TURN_LIMIT), episode("b", "g", 1.0)]}
    metrics = build_step_batch(groups, "rloo", AdvantageSettings(), 3).metrics
    assert metrics["rollout/failure_rate"] == 0.5
    assert metrics["rollout/outcome/turn_limit"] == 0.5
    assert metrics["rollout/reward/mean"] == 0.0


def test_step_batch_groups_without_signal_are_those_whose_advantages_are_zero() -> None:
    groups = {
        "flat": [episode("a", "flat", 0.2), episode("b", "flat", 0.2)],
        "tie": [episode("c", "tie", 1.0), episode("d", "tie", 1.0), episode("e", "tie", 0.0)],
    }
    counted = {
        name: build_step_batch(groups, name, AdvantageSettings(), 3).metrics
        for name in ("group_based", "grpo_passk", "reinforce_pp")
    }
    assert {name: found["analysis/zero_adv_groups"] for name, found in counted.items()} == {
        "group_based": 1,
        "grpo_passk": 2,  # the best of the second group is not better than its second best
        "reinforce_pp": 0,
    }
    assert counted["group_based"]["rollout/reward/valid_mean"] == pytest.approx(2 / 3)
    assert counted["grpo_passk"]["rollout/reward/valid_mean"] == 0
    assert counted["grpo_passk"]["analysis/zero_adv_nonzero_reward"] == 2


@pytest.mark.parametrize("name", advantage_names())
def test_step_batch_episodes_split_into_rows_keep_their_advantages(name: str) -> None:
    """Pass@k and every other advantage is of episodes and their turns, whatever a template did to the prompts."""

    def sampled_advantages(split: tuple[str, ...]) -> tuple[int, dict[str, list[float]]]:
        rewards = {"a": 1.0, "b": 0.4, "c": 0.0, "d": 0.3, "e": 0.7}
        episodes = [episode(each, "g" if each in "abc" else "h", reward) for each, reward in rewards.items()]
        for each in episodes:
            each.turns[1].tool_calls = [ToolCall("bm25_search", {"query": each.trajectory_id})]
            each.turn_rewards = [0.25 * rewards[each.trajectory_id], 0.75 * rewards[each.trajectory_id]]
            if each.trajectory_id in split:
                each.turns[1] = replace(each.turns[1], prompt_ids=[1, 2, 3, 9, 6])
        groups = {"g": episodes[:3], "h": episodes[3:]}
        rows = build_step_batch(groups, name, AdvantageSettings(), 3).rows
        values: dict[str, list[float]] = {each: [] for each in rewards}
        for row in rows:
            values[row.trajectory_id] += row.advantages[row.loss_mask].tolist()
        return len(rows), values

    whole_rows, whole = sampled_advantages(())
    assert any(any(values) for values in whole.values())
    for split in (("a",), ("b", "c"), ("a", "b", "c", "d", "e")):
        rows, values = sampled_advantages(split)
        assert rows == whole_rows + len(split)
        assert values == whole


def test_step_batch_missing_logprobs_are_counted_and_leave_the_others_their_numbers() -> None:
    first, second = episode("a", "g", 1.0), episode("b", "g", 0.0)
    first.turns[0].logprobs = [float("nan"), 0.0]
    metrics = build_step_batch({"g": [first, second]}, "rloo", AdvantageSettings(), 3).metrics
    assert metrics["rollout/logprob/missing_count"] == 1
    assert (metrics["rollout/logprob/zero_count"], metrics["rollout/logprob/zero_per_group"]) == (1, 1)
    assert metrics["rollout/logprob/nz_mean"] == pytest.approx((-1 - 0.5 - 0.25 - 1) / 4)
    assert (metrics["rollout/logprob/nz_min"], metrics["rollout/logprob/nz_max"]) == (-1, -0.25)


def test_step_batch_turn_rewards_of_some_episodes_only_are_refused() -> None:
    first, second = episode("a", "g", 1.0), episode("b", "g", 0.0)
    first.turn_rewards = [0.0, 1.0]
    with pytest.raises(LearnerError, match="Trajectory b has no rewards for its turns"):
        build_step_batch({"g": [first, second]}, "monte_carlo", AdvantageSettings(), 3)


@pytest.mark.parametrize("advantage", ["group_based_per_turn", "monte_carlo", "reinforce_pp", "group_based"])
@pytest.mark.parametrize("given", [None, []])
def test_step_batch_episode_without_turns_needs_no_rewards_for_them(advantage: str, given: list[float] | None) -> None:
    first, second, none = episode("a", "g", 1.0), episode("b", "g", 0.0), episode("c", "g", -1.0)
    first.turn_rewards, second.turn_rewards = [0.0, 1.0], [0.0, 0.0]
    none.turns, none.turn_rewards = [], given
    batch = build_step_batch({"g": [first, second, none]}, advantage, AdvantageSettings(), 3)
    assert {row.trajectory_id for row in batch.rows} == {"a", "b"}
    assert np.isfinite([row.advantages.sum() for row in batch.rows]).all()


def test_step_batch_salt_keeps_different_malformed_turns_apart() -> None:
    """Two malformed first turns of other words are other steps; the same words are one step and share their advantage."""
    episodes = [episode(name, "g", reward) for name, reward in (("a", 1.0), ("b", 0.0), ("c", 0.25))]
    episodes[2].turns[0].sampled_ids = [4, 9]
    batch = build_step_batch({"g": episodes}, "salt", AdvantageSettings(normalize_std=False), 3)
    first = {row.trajectory_id: float(row.advantages[3]) for row in batch.rows if row.turn_index[3] == 0}
    mean = (1.0 + 0.0 + 0.25) / 3
    assert first["a"] == first["b"] == pytest.approx(0.5 - mean, abs=1e-6)
    assert first["c"] == pytest.approx(0.25 - mean, abs=1e-6)


def test_step_batch_group_without_an_episode_is_refused_by_its_name() -> None:
    with pytest.raises(LearnerError, match="The group h has no episode"):
        build_step_batch({"g": [episode("a", "g", 1.0)], "h": []}, "group_based", AdvantageSettings(), 3)
    with pytest.raises(LearnerError, match="first trajectories: there is none"):
        build_step_batch({}, "group_based", AdvantageSettings(), 3)


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
