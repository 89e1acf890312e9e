"""What a system's episodes say beside nDCG: hand-worked values, and what counts where an episode failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.measures import MeasureSettings, Prices, measure
from rl_cluster.evaluation.records import INJECTED, idle_searches, record_of
from rl_cluster.evaluation.summary import EpisodeRecord

SETTINGS = MeasureSettings(success_threshold=0.5, pass_k=(1, 2, 4), resamples=1000)
TASK = Task("t1", "Which runbook?", "kb", {"g1": 3.0, "g2": 1.0, "n": 0.0}, dataset="kb")


def record(task: str, ndcg: float, outcome: Outcome = Outcome.FINISHED) -> EpisodeRecord:
    return EpisodeRecord(task, "kb", outcome, ndcg, 3, 2, 0, 50, 2.0, 0.5, 0.75, 0.25, 1000, 2, 1, 1, 1)


def turn(found: list[str], error: str | None = None) -> Turn:
    call = ToolCall("bm25_search", {"query": "q"}, error)
    return Turn([1] * 10, [2] * 4, [-0.1] * 4, [0] * 4, tool_calls=[call], observations=["o"], found_ids=found)


def trajectory(turns: list[Turn], ranking: list[str]) -> Trajectory:
    return Trajectory("x", "t1", "g", turns, Outcome.FINISHED, ranking=ranking, started_at=10.0, finished_at=12.5)


def test_record_of_counts_gold_searches_and_tokens() -> None:
    turns = [turn(["g1", "n"]), turn(["n", "g1"]), turn([], f"down {INJECTED}"), turn([], "no such tool")]
    made = record_of(trajectory(turns, ["n", "g2"]), TASK)
    assert (made.gold, made.gold_found, made.gold_left) == (2, 1, 1)
    assert (made.searches, made.malformed_calls, made.injected, made.idle_searches) == (3, 1, 1, 1)
    assert (made.prompt_tokens, made.sampled_tokens, made.latency_s, made.dataset) == (40, 16, 2.5, "kb")
    assert (made.recall_10, made.reciprocal_rank) == (0.5, 0.5)
    assert 0 < made.ndcg < 0.5


def test_idle_searches_empty_answers_are_alike_and_order_does_not_matter() -> None:
    assert idle_searches(trajectory([turn([]), turn([]), turn(["a", "b"]), turn(["b", "a"])], [])) == 2
    assert idle_searches(trajectory([turn(["a"]), turn(["a", "b"])], [])) == 0


def test_measure_failed_episode_has_no_quality_and_stays_in_the_mean() -> None:
    found = measure([record("a", 1.0), record("b", 0.9, Outcome.TURN_LIMIT)], SETTINGS)
    assert found["recall@10"]["mean"] == 0.25
    assert found["mrr"]["mean"] == 0.125
    assert found["success_rate"]["mean"] == 0.5
    assert found["failure_rates"] == {"turn_limit": 0.5}
    assert found["gold_found"]["mean"] == found["gold_found_not_handed_in"]["mean"] == 1.0
    assert "pass_at_1" not in found


def test_measure_infrastructure_losses_have_no_turns_or_time() -> None:
    lost = replace(record("b", 0.0, Outcome.WORKER_LOST), turns=0, latency_s=0.0)
    found = measure([record("a", 1.0), lost], SETTINGS)
    assert found["turns"] == {"mean": 3.0, "ci95": None, "n": 1}
    assert found["latency_s"] == {"median": 2.0, "p95": 2.0, "n": 1}
    assert found["recall@10"]["n"] == 2


def test_measure_pass_rates_are_unbiased_and_over_questions_with_enough_episodes() -> None:
    records = [record("a", score) for score in (1.0, 1.0, 0.0, 0.0)] + [record("b", 1.0), record("b", 0.0)]
    found = measure(records, SETTINGS)
    assert found["pass_at_1"]["mean"] == found["pass_power_1"]["mean"] == 0.5
    assert found["pass_at_2"]["mean"] == pytest.approx((5 / 6 + 1) / 2)
    assert found["pass_power_2"]["mean"] == pytest.approx((1 / 6 + 0) / 2)
    assert found["pass_at_4"] == {"mean": 1.0, "ci95": None, "n": 1}
    assert "pass_at_8" not in found


def test_measure_cost_follows_prices_and_is_left_out_without_any() -> None:
    prices = Prices(input_per_million=1.0, output_per_million=10.0, per_search=0.01, per_second=0.1)
    found = measure([record("a", 1.0)], SETTINGS, prices)
    assert found["cost"]["mean"] == pytest.approx(0.001 + 0.0005 + 0.02 + 0.2)
    assert "cost" not in measure([record("a", 1.0)], SETTINGS, Prices())
