"""Numbers of an evaluation for the tracker: the managed service's names, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_cluster.episodes.logprobs import logprob_metrics
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.summary import EpisodeRecord
from rl_cluster.tracking.evaluation_metrics import reward_metrics


def record(
    task: str, ndcg: float, outcome: Outcome = Outcome.FINISHED, turns: int = 2, tokens: int = 30
) -> EpisodeRecord:
    return EpisodeRecord(task, "kb", outcome, ndcg, turns, 1, 0, tokens, 1.0)


def test_reward_metrics_two_rollouts_of_two_questions() -> None:
    records = [
        record("a", 1.0, turns=3, tokens=50),
        record("a", 0.0),
        record("b", 0.5),
        record("b", 0.7, Outcome.TURN_LIMIT, turns=5, tokens=10),
    ]
    found = reward_metrics(records, "val")
    expected = {
        "reward/mean": 0.125,
        "reward/min": -1,
        "reward/max": 1,
        "reward/std": float(np.std([1, 0, 0.5, -1])),
        "reward/zero_frac": 0.25,
        "reward/succeeded_rollouts": 1,
        "reward/failed_rollouts": 1,
        "reward/pass_at_1": 0.25,
        "reward/pass_power_1": 0.25,
        "reward/num_prompts": 2,
        "reward/rollouts_per_prompt": 2,
        "reward/success_threshold": 0.9,
        "reward/mean_within_groups": 0.125,
        "reward/std_within_groups": (0.5 + 0.75) / 2,
        "reward/min_within_groups": -0.5,
        "reward/max_within_groups": 0.75,
        "turns/mean": 3,
        "turns/min": 2,
        "turns/max": 5,
        "tokens/response_mean": 30,
        "tokens/response_std": float(np.std([50, 30, 30, 10])),
        "tokens/response_min": 10,
        "tokens/response_max": 50,
    }
    assert found == pytest.approx({f"val/{name}": value for name, value in expected.items()})


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
