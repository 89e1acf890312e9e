"""Agreement with trec_eval: graded and binary, ties, scores of one 32-bit float, empty runs, missing queries, fractions."""

from __future__ import annotations

import random

import numpy as np
import pytest
import pytrec_eval

from rl_cluster.errors import DataError
from rl_cluster.evaluation.metrics import ndcg_at_k, recall_at_k, reciprocal_rank
from rl_cluster.evaluation.trec import ranking_of_scores, whole_gains
from tests.helpers.prepared import JUDGED_SETS, expected

DOCUMENTS = [f"d{i}" for i in range(40)]
MEASURES = {"ndcg_cut.10", "recall.10", "recall.100", "recip_rank"}


def largest_gap(gains: dict[str, dict[str, float]], runs: dict[str, dict[str, float]]) -> float:
    """Over all queries and all four measures; a query without a run has zeros there, as `trec_eval -c` counts it."""
    whole, factor = whole_gains(gains)
    reference = pytrec_eval.RelevanceEvaluator(whole, MEASURES).evaluate(runs)
    assert reference.keys() == runs.keys()
    gap = 0.0
    for query_id, judged in gains.items():
        ranking = ranking_of_scores(runs.get(query_id, {}))
        ours = {
            "ndcg_cut_10": ndcg_at_k(ranking, judged, 10),
            "recall_10": recall_at_k(ranking, judged, 10),
            "recall_100": recall_at_k(ranking, judged, 100),
            "recip_rank": reciprocal_rank(ranking, judged),
        }
        theirs = reference[query_id] if query_id in runs else dict.fromkeys(ours, 0.0)
        for name, value in ours.items():
            assert value is not None
            gap = max(gap, abs(value - theirs[name]))
    assert factor >= 1
    return gap


@pytest.mark.parametrize("grades", [(0.0, 1.0), (0.0, 1.0, 2.0, 3.0), (0.0, 0.01, 0.1, 0.5, 1.0)])
@pytest.mark.parametrize("step", [0.0, 0.25, 1e-9])
def test_ranking_metrics_random_runs_with_ties_agree_with_trec_eval(grades: tuple[float, ...], step: float) -> None:
    """A step of 0 makes no ties on purpose; 1e-9 makes scores that are apart in 64 bits and equal in 32."""
    rng = random.Random(len(grades))
    gains, runs = {}, {}
    for query in map(str, range(150)):
        judged = {doc_id: rng.choice(grades) for doc_id in rng.sample(DOCUMENTS, rng.randint(1, 20))}
        gains[query] = {**judged, rng.choice(DOCUMENTS): 1.0}
        found = rng.sample(DOCUMENTS, rng.randint(0, 40))
        runs[query] = {d: 1 + step * rng.randint(0, 4) if step else rng.random() for d in found}
    assert largest_gap(gains, runs) < 1e-12


def test_ranking_of_scores_equal_in_32_bits_is_by_id_descending() -> None:
    assert ranking_of_scores({"a": 1.0, "c": 1.0 + 1e-9, "b": 1.0 + 2e-9}) == ["c", "b", "a"]
    assert np.float32(1.0) == np.float32(1.0 + 2e-9)


def test_ranking_metrics_missing_query_and_empty_run_count_zero() -> None:
    """trec_eval leaves a missing query out of its answer; here it is a question with an empty ranking."""
    gains = {"empty": {"d1": 1.0}, "missing": {"d1": 1.0}}
    whole, _ = whole_gains(gains)
    reference = pytrec_eval.RelevanceEvaluator(whole, MEASURES).evaluate({"empty": {}})
    assert reference == {"empty": dict.fromkeys(("ndcg_cut_10", "recall_10", "recall_100", "recip_rank"), 0.0)}
    assert largest_gap(gains, {"empty": {}}) == 0.0
    missing = gains["missing"]
    assert ndcg_at_k([], missing) == recall_at_k([], missing) == reciprocal_rank([], missing) == 0.0


@pytest.mark.parametrize("name", JUDGED_SETS)
def test_ranking_metrics_published_gains_agree_with_trec_eval(name: str) -> None:
    """With tied scores, some in 32 bits alone, and each query once with an empty run and once with none."""
    questions = expected(name)["queries"]
    tables = sorted({key for question in questions for key in question if key.startswith("gains")})
    assert tables
    rng = random.Random(1)
    for table in tables:
        gains = {
            question["query_id"]: {**dict.fromkeys(question.get("judged_zero", ()), 0.0), **question[table]}
            for question in questions
            if any(gain > 0 for gain in question.get(table, {}).values())
        }
        assert gains
        for query_id in gains:
            runs = {
                other: {d: rng.choice((0.5, 0.5 + 1e-9, rng.random())) for d in [*sorted(judged), "x1", "x2"]}
                for other, judged in gains.items()
            }
            assert largest_gap(gains, runs) < 1e-12
            assert largest_gap(gains, {**runs, query_id: {}}) < 1e-12
            del runs[query_id]
            assert largest_gap(gains, runs) < 1e-12


def test_reciprocal_rank_hand_worked_places() -> None:
    gains = {"a": 1.0, "b": 0.0}
    assert reciprocal_rank(["b", "x", "a", "a"], gains) == pytest.approx(1 / 3)
    assert reciprocal_rank(["x"], gains) == 0.0
    assert reciprocal_rank(["b"], {"b": 0.0}) is None


def test_recall_duplicates_count_once_and_keep_their_place() -> None:
    gains = {"a": 1.0, "b": 1.0}
    assert recall_at_k(["a"] * 10 + ["b"], gains, 10) == 0.5
    assert recall_at_k(["a"] * 10 + ["b"], gains, 100) == 1.0
    assert ndcg_at_k(["a", "a", "b"], gains) == pytest.approx((1 + 0.5) / (1 + 1 / np.log2(3)))


def test_whole_gains_factor_is_the_smallest() -> None:
    assert whole_gains({"q": {"a": 0.1, "b": 0.01, "c": 1.0}}) == ({"q": {"a": 10, "b": 1, "c": 100}}, 100)
    assert whole_gains({"q": {"a": 2.0}}) == ({"q": {"a": 2}}, 1)


@pytest.mark.parametrize("gain", [-1.0, float("nan"), 0.12345678901])
def test_whole_gains_unusable_gain_is_named(gain: float) -> None:
    with pytest.raises(DataError, match="'q' has the gain"):
        whole_gains({"q": {"a": gain}})
