"""Holm, power, repeats, and the decomposition of published aggregates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from rl_cluster.errors import DataError
from rl_cluster.evaluation.decomposition import decompose_published
from rl_cluster.evaluation.holm import holm
from rl_cluster.evaluation.power import smallest_detectable_effect
from rl_cluster.evaluation.repeats import mean_over_repeats
from rl_cluster.evaluation.statistics import bootstrap_mean_ci


def test_decomposition_published_browsecomp_plus_is_failures_avoided() -> None:
    parts = decompose_published(0.5136, 0.2289, 0.6354, 0.0068)
    assert round(parts.failure_avoidance, 3) == 0.148
    assert round(parts.ranking, 3) == -0.026
    assert parts.failure_avoidance + parts.ranking == pytest.approx(parts.gain, abs=1e-15)


def test_decomposition_same_failures_is_all_ranking() -> None:
    parts = decompose_published(0.4, 0.2, 0.6, 0.2)
    assert parts.failure_avoidance == 0.0
    assert parts.ranking == pytest.approx(0.2)


@pytest.mark.parametrize(("before", "after"), [((0.0, 1.0), (0.6, 0.1)), ((0.6, 0.1), (0.0, 1.0))])
def test_decomposition_one_side_finished_nothing_is_all_failures(
    before: tuple[float, float], after: tuple[float, float]
) -> None:
    parts = decompose_published(*before, *after)
    assert parts.failure_avoidance == pytest.approx(parts.gain)
    assert parts.ranking == pytest.approx(0.0)


@pytest.mark.parametrize("bad", [(0.9, 0.2, 0.5, 0.0), (0.5, -0.1, 0.5, 0.0), (0.5, 0.0, 0.5, 1.1)])
def test_decomposition_impossible_aggregates_raise(bad: tuple[float, float, float, float]) -> None:
    with pytest.raises(DataError, match="cannot be"):
        decompose_published(*bad)


def test_holm_hand_worked_values_and_order() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == pytest.approx({"a": 1.0, "b": 1.0})
    assert holm({}) == {}
    with pytest.raises(DataError, match="p-value of a"):
        holm({"a": 1.5})


@pytest.mark.parametrize("comparisons", [1, 8])
def test_smallest_detectable_effect_has_the_power_it_says_at_the_level_of_its_comparisons(comparisons: int) -> None:
    rng = np.random.default_rng(0)
    effect = smallest_detectable_effect(0.3, 80, comparisons)
    assert effect is not None
    p_values: Any = stats.ttest_1samp(rng.normal(effect, 0.3, (2000, 80)), 0.0, axis=1)[1]
    assert np.mean(p_values < 0.05 / comparisons) == pytest.approx(0.8, abs=0.03)


def test_smallest_detectable_effect_nothing_known_is_none() -> None:
    assert smallest_detectable_effect(None, 1) is None
    assert smallest_detectable_effect(0.0, 30) is None


def test_smallest_detectable_effect_so_few_questions_that_none_is_ever_found_is_none() -> None:
    """The signs of 5 differences give a p of 2 / 2^5 at least, those of 6 one of 2 / 2^6."""
    assert smallest_detectable_effect(0.3, 5) is None
    assert smallest_detectable_effect(0.3, 6) is not None
    assert smallest_detectable_effect(0.3, 6, comparisons=2) is None


def test_mean_over_repeats_covers_new_seeds_and_questions() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(1000):
        values = 0.4 + rng.normal(0, 0.05, (4, 1)) + rng.normal(0, 0.2, (1, 50)) + rng.normal(0, 0.1, (4, 50))
        interval = mean_over_repeats(values.tolist())
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 0.4 <= interval.high
    assert 0.92 <= covered / 1000 <= 0.99


def test_mean_over_repeats_one_seed_has_no_interval_and_unequal_rows_raise() -> None:
    assert mean_over_repeats([[0.2, 0.4]]).interval is None
    assert mean_over_repeats([[0.5, 0.5], [0.5, 0.5]]).interval == [0.5, 0.5]
    with pytest.raises(DataError, match="every seed"):
        mean_over_repeats([[0.1], [0.1, 0.2]])


def test_bootstrap_under_ten_questions_says_so() -> None:
    assert bootstrap_mean_ci([[0.1], [0.4], [0.3]], resamples=1000).caution.startswith("only 3 questions")
    assert bootstrap_mean_ci([[float(i % 3)] for i in range(10)], resamples=1000).caution == ""
