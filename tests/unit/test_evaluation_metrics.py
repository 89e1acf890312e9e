"""Metrics against golden values and against trec_eval."""

from __future__ import annotations

import random

import pytest
import pytrec_eval

from rl_cluster.evaluation.metrics import ndcg_at_k, pass_at_k, pass_power_k, recall_at_k


def test_ndcg_golden_list_counts_a_repeated_document_once() -> None:
    gains = {"d1": 3, "d2": 2, "d3": 1, "d4": 0}
    assert ndcg_at_k(["d3", "x", "d1", "d3", "d2"], gains) == pytest.approx(0.687485, abs=5e-7)


def test_ndcg_edges_perfect_empty_and_unjudged() -> None:
    gains = {"a": 2.0, "b": 1.0, "c": 0.0}
    assert ndcg_at_k(["a", "b"], gains) == 1.0
    assert ndcg_at_k([], gains) == 0.0
    assert ndcg_at_k(["x"] * 10 + ["a"], gains) == 0.0
    assert ndcg_at_k(["a"], {"a": 0.0}) is None
    assert ndcg_at_k(["a"], {}) is None
    assert recall_at_k(["a"], {}) is None
    assert ndcg_at_k(["b"], gains, k=1) == pytest.approx(0.5)


@pytest.mark.parametrize("k", [1, 5, 10])
def test_ndcg_and_recall_random_runs_agree_with_trec_eval(k: int) -> None:
    rng = random.Random(k)
    documents = [f"d{i}" for i in range(30)]
    judged: dict[str, dict[str, int]] = {}
    runs: dict[str, list[str]] = {}
    for question in range(200):
        gains = {doc_id: rng.randint(0, 3) for doc_id in rng.sample(documents, rng.randint(1, 20))}
        gains[rng.choice(documents)] = 1
        judged[str(question)] = gains
        runs[str(question)] = rng.sample(documents, rng.randint(1, 30))
    scores = {question: {doc: -float(place) for place, doc in enumerate(run)} for question, run in runs.items()}
    reference = pytrec_eval.RelevanceEvaluator(judged, {f"ndcg_cut.{k}", f"recall.{k}"}).evaluate(scores)
    for question, run in runs.items():
        assert ndcg_at_k(run, judged[question], k) == pytest.approx(reference[question][f"ndcg_cut_{k}"], abs=1e-9)
        assert recall_at_k(run, judged[question], k) == pytest.approx(reference[question][f"recall_{k}"], abs=1e-9)


def test_pass_rates_golden_counts_match_formula_sheet() -> None:
    assert [pass_at_k(10, 3, k) for k in (1, 2, 5)] == pytest.approx([0.3, 0.533333, 0.916667], abs=5e-7)
    assert [pass_power_k(10, 3, k) for k in (2, 3)] == pytest.approx([0.066667, 0.008333], abs=5e-7)
    assert (pass_at_k(8, 6, 4), pass_power_k(8, 6, 4)) == pytest.approx((1, 0.214286), abs=5e-7)


@pytest.mark.parametrize("counts", [(3, 1, 4), (3, 4, 1), (3, 1, 0), (3, -1, 1)])
def test_pass_rates_impossible_counts_raise(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        pass_at_k(*counts)
    with pytest.raises(ValueError, match="do not fit"):
        pass_power_k(*counts)


def test_ranking_metrics_k_zero_raises() -> None:
    for metric in (ndcg_at_k, recall_at_k):
        with pytest.raises(ValueError, match="k=0"):
            metric(["a"], {"a": 1.0}, 0)
