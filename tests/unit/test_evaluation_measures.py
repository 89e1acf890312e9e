"""What a system's episodes say beside nDCG: hand-worked values, and what counts where an episode failed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.busy import busy_shares
from rl_cluster.evaluation.measures import MeasureSettings, Prices, measure
from rl_cluster.evaluation.records import idle_searches, record_of
from rl_cluster.evaluation.summary import EpisodeRecord, compare, summarise

SETTINGS = MeasureSettings(success_threshold=0.5, pass_k=(1, 2, 4), resamples=1000)
TASK = Task("t1", "Which runbook?", "kb", {"g1": 3.0, "g2": 1.0, "n": 0.0}, dataset="kb")


def record(task: str, ndcg: float, outcome: Outcome = Outcome.FINISHED) -> EpisodeRecord:
    return EpisodeRecord(task, "kb", outcome, ndcg, 3, 2, 0, 50, 2.0, 0.5, 0.75, 0.25, 1000, 2, 1, 1, 1)


def search(*found: str, name: str = "bm25_search", error: str | None = None, injected: bool = False) -> ToolCall:
    return ToolCall(name, {"query": "q"}, error, found, injected)


def turn(*calls: ToolCall) -> Turn:
    return Turn([1] * 10, [2] * 4, [-0.1] * 4, [0] * 4, tool_calls=list(calls), observations=["o"])


def trajectory(turns: list[Turn], ranking: list[str]) -> Trajectory:
    return Trajectory("x", "t1", "g", turns, Outcome.FINISHED, ranking=ranking, started_at=10.0, finished_at=12.5)


def test_record_of_counts_gold_searches_and_tokens() -> None:
    failed = search(error="down", injected=True)
    turns = [turn(search("g1", "n")), turn(search("n", "g1")), turn(failed), turn(search(error="no such tool"))]
    made = record_of(trajectory(turns, ["n", "g2"]), TASK)
    assert (made.gold, made.gold_found, made.gold_left) == (2, 1, 1)
    assert (made.searches, made.malformed_calls, made.injected, made.idle_searches) == (3, 1, 1, 1)
    assert (made.prompt_tokens, made.sampled_tokens, made.latency_s, made.dataset) == (40, 16, 2.5, "kb")
    assert (made.recall_10, made.reciprocal_rank) == (0.5, 0.5)
    assert made.handed_in == 2
    assert 0 < made.ndcg < 0.5


def test_record_of_reading_is_no_search_and_a_last_turns_call_is_none_either() -> None:
    reading = [turn(ToolCall("read_document", {"doc_id": "g1", "part": part})) for part in (1, 2)]
    unanswered = Turn([1], [2], [0.0], [0], tool_calls=[search()])
    made = record_of(trajectory([turn(search("g1")), *reading, unanswered], []), TASK)
    assert (made.searches, made.idle_searches, made.malformed_calls) == (1, 0, 0)


def test_record_of_slowed_search_is_counted_as_injected_and_as_a_search() -> None:
    made = record_of(trajectory([turn(search("g1", injected=True))], ["g1"]), TASK)
    assert (made.injected, made.searches, made.malformed_calls) == (1, 1, 0)


def test_idle_searches_are_those_that_show_nothing_new() -> None:
    def idle(*turns: Turn) -> int:
        return idle_searches(trajectory(list(turns), []))

    assert idle(turn(search()), turn(search()), turn(search("a", "b")), turn(search("b", "a"))) == 2
    assert idle(turn(search("a")), turn(search("a", "b"))) == 0
    assert idle(turn(search("a", "b", "c")), turn(search("b"))) == 1
    assert idle(turn(search("a")), turn(search("b")), turn(search("b", "a"))) == 1
    assert idle(turn(search("a"), search("a")), turn(search("b"))) == 1
    assert idle(turn(search("a")), turn(search(error="down", injected=True))) == 0


def test_measure_failed_episode_has_no_quality_and_stays_in_the_mean() -> None:
    found = measure([record("a", 1.0), record("b", 0.9, Outcome.TURN_LIMIT)], SETTINGS)
    assert found["recall@10"]["mean"] == 0.25
    assert found["mrr"]["mean"] == 0.125
    assert found["success_rate"]["mean"] == 0.5
    assert found["failure_rates"]["turn_limit"]["mean"] == 0.5
    assert found["gold_found"]["mean"] == found["gold_found_not_handed_in"]["mean"] == 1.0
    assert "pass_at_1" not in found


def test_measure_infrastructure_losses_have_no_turns_or_time() -> None:
    lost = replace(record("b", 0.0, Outcome.WORKER_LOST), turns=0, latency_s=0.0)
    found = measure([record("a", 1.0), lost], SETTINGS)
    assert found["turns"] == {"mean": 3.0, "ci95": None, "n": 1}
    assert found["latency_s"] == {"median": 2.0, "median_ci95": None, "p95": 2.0, "p95_ci95": None, "n": 1}
    assert found["recall@10"]["n"] == 2


def test_measure_failure_rates_by_reason_have_the_interval_of_their_questions() -> None:
    """Four samples of a question that fail together are one question, not four."""
    failing = {3: Outcome.TURN_LIMIT, 7: Outcome.TURN_LIMIT, 8: Outcome.NO_ANSWER}
    one = [record(f"q{i}", 0.5, failing.get(i, Outcome.FINISHED)) for i in range(20)]
    found = measure(one, SETTINGS)["failure_rates"]
    assert {reason: rate["mean"] for reason, rate in found.items()} == {"no_answer": 0.05, "turn_limit": 0.1}
    for reason, times in (("no_answer", 1), ("turn_limit", 2)):
        expected = stats.binomtest(times, 20).proportion_ci(method="wilson")
        assert found[reason]["ci95"] == pytest.approx([expected.low, expected.high], abs=1e-3)
    assert measure(one * 4, SETTINGS)["failure_rates"] == found


def test_measure_latency_of_samples_that_are_alike_is_no_surer_than_of_one() -> None:
    times = np.random.default_rng(1).lognormal(0.0, 0.5, 80)
    one = [replace(record(f"q{i}", 0.5), latency_s=float(seconds)) for i, seconds in enumerate(times)]
    found, several = measure(one, SETTINGS)["latency_s"], measure(one * 4, SETTINGS)["latency_s"]
    assert found["median"] == np.median(times)
    for name in ("median", "p95"):
        low, high = found[f"{name}_ci95"]
        assert low < found[name] < high
        assert several[f"{name}_ci95"] == [low, high]
    few = measure(one[:20], SETTINGS)["latency_s"]
    assert few["median_ci95"] is not None
    assert few["p95_ci95"] is None


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
    found = measure([replace(record("a", 1.0), billed_s=1.5)], SETTINGS, prices)
    assert found["cost"]["mean"] == pytest.approx(0.001 + 0.0005 + 0.02 + 0.15)
    assert "cost" not in measure([record("a", 1.0)], SETTINGS, Prices())


def test_measure_rates_and_qualities_of_one_value_are_not_certain() -> None:
    alike = [replace(record(f"q{i}", 0.0, Outcome.NO_ANSWER), gold_found=0) for i in range(20) for _ in range(2)]
    found = measure(alike, SETTINGS)
    for name in ("success_rate", "pass_at_2", "pass_power_2", "gold_found", "recall@10", "mrr"):
        assert found[name]["ci95"] == pytest.approx([0.0, 1 - 0.025 ** (1 / 20)]), name
    assert summarise(alike).ndcg.interval == found["recall@10"]["ci95"]
    assert compare(alike, alike, resamples=1000).ndcg.interval == pytest.approx([-0.1684, 0.1684], abs=1e-4)


def test_busy_shares_of_episodes_under_way_together_sum_up_to_the_time_that_passed() -> None:
    assert busy_shares([(0.0, 4.0), (0.0, 4.0), (2.0, 4.0)]) == pytest.approx([1 + 2 / 3, 1 + 2 / 3, 2 / 3])
    assert busy_shares([(5.0, 6.0), (8.0, 9.5)]) == pytest.approx([1.0, 1.5])
    assert busy_shares([(3.0, 3.0), (1.0, 3.0)]) == pytest.approx([0.0, 2.0])
    assert busy_shares([]) == []
