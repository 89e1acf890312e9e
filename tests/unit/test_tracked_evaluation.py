"""Numbers of an evaluation for the tracker, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_cluster.episodes.logprobs import logprob_metrics
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.summary import EpisodeRecord
from rl_cluster.tracking.evaluation_metrics import reward_metrics


def record(
    task: str,
    ndcg: float,
    outcome: Outcome = Outcome.FINISHED,
    turns: int = 2,
    tokens: int = 30,
    reward: float | None = None,
) -> EpisodeRecord:
    return EpisodeRecord(task, "kb", outcome, ndcg, turns, 1, 0, tokens, 1.0, reward=reward)


def test_reward_metrics_episode_that_infrastructure_lost_is_not_solved_and_in_no_other_number() -> None:
    records = [record("a", 1.0, reward=1.0), record("b", 0.0, Outcome.WORKER_LOST, turns=9, tokens=900)]
    found = reward_metrics(records, "val", 0.9)
    assert found["val/reward/pass_at_1"] == 0.5
    assert found["val/reward/num_prompts"] == 2
    assert (found["val/reward/mean"], found["val/turns/max"], found["val/tokens/response_max"]) == (1.0, 2, 30)
    lost = reward_metrics(records[1:], "val", 0.9)
    assert lost["val/reward/pass_at_1"] == 0.0
    assert not {"val/reward/mean", "val/turns/mean", "val/tokens/prompt_mean"} & set(lost)


def test_reward_metrics_two_rollouts_of_two_questions() -> None:
    records = [
        record("a", 1.0, turns=3, tokens=50, reward=3.0),
        record("a", 0.0, reward=0.0),
        record("b", 0.5, reward=1.0),
        record("b", 0.7, Outcome.TURN_LIMIT, turns=5, tokens=10, reward=-2.0),
    ]
    found = reward_metrics(records, "val", 0.9)
    expected = {
        "reward/mean": 0.5,
        "reward/min": -2,
        "reward/max": 3,
        "reward/std": float(np.std([3, 0, 1, -2])),
        "reward/zero_frac": 0.25,
        "reward/succeeded_rollouts": 1,
        "reward/failed_rollouts": 1,
        "reward/pass_at_1": 0.25,
        "reward/pass_power_1": 0.25,
        "reward/num_prompts": 2,
        "reward/rollouts_per_prompt": 2,
        "reward/success_threshold": 0.9,
        "reward/mean_within_groups": 0.5,
        "reward/std_within_groups": 1.5,
        "reward/min_within_groups": -1,
        "reward/max_within_groups": 2,
        "turns/mean": 3,
        "turns/min": 2,
        "turns/max": 5,
        "tokens/prompt_mean": 0,
        "tokens/response_mean": 30,
        "tokens/response_std": float(np.std([50, 30, 30, 10])),
        "tokens/response_min": 10,
        "tokens/response_max": 50,
    }
    assert found == pytest.approx({f"val/{name}": value for name, value in expected.items()})


def test_reward_metrics_of_episodes_without_a_reward_are_left_out() -> None:
    found = reward_metrics([record("a", 1.0), record("b", 0.0)], "val", 0.9)
    assert found["val/reward/pass_at_1"] == 0.5
    assert not {"val/reward/mean", "val/reward/zero_frac", "val/reward/std_within_groups"} & found.keys()
    some = reward_metrics([record("a", 1.0), record("a", 1.0, reward=0.25), record("b", 0.0)], "val", 0.9)
    assert (some["val/reward/mean"], some["val/reward/min_within_groups"]) == (0.25, 0.25)


def test_logprob_metrics_zeros_and_missing_ones_are_apart() -> None:
    found = logprob_metrics(np.array([-1.0, 0.0, math.nan, -3.0]), "eval")
    assert found == {
        "eval/logprob/zero_count": 1,
        "eval/logprob/zero_frac": 0.25,
        "eval/logprob/missing_count": 1,
        "eval/logprob/nz_mean": -2,
        "eval/logprob/nz_std": 1,
        "eval/logprob/nz_min": -3,
        "eval/logprob/nz_max": -1,
    }
    assert logprob_metrics(np.zeros(0), "val")["val/logprob/nz_mean"] == 0
