"""Intervals and tests over questions: coverage, exactness, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rl_cluster.errors import DataError
from rl_cluster.evaluation.statistics import (
    bootstrap_mean_ci,
    paired_difference,
    quantile_interval,
    rate_interval,
    student_quantile,
)


def ndcg_like(rng: np.random.Generator, n: int) -> np.ndarray:
    """Half zeros, some ones, the rest between: the shape that nDCG of a small model has."""
    kind = rng.random(n)
    return np.where(kind < 0.5, 0.0, np.where(kind < 0.65, 1.0, rng.beta(1.5, 2.0, n)))


NDCG_LIKE_MEAN = 0.15 + 0.35 * 1.5 / 3.5


def test_bootstrap_coverage_of_ndcg_like_studies_is_near_level() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for study in range(200):
        interval = bootstrap_mean_ci([[v] for v in ndcg_like(rng, 60)], resamples=800, seed=study)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= NDCG_LIKE_MEAN <= interval.high
    assert 0.90 <= covered / 200 <= 0.99


def test_bootstrap_coverage_of_clustered_rollouts_is_near_level() -> None:
    """Eight rollouts per question are not eight questions: intervals that forget it would cover far less."""
    rng = np.random.default_rng(1)
    covered = 0
    for study in range(200):
        questions = [list(rng.normal(level, 0.1, 8)) for level in rng.normal(0.4, 0.2, 40)]
        interval = bootstrap_mean_ci(questions, resamples=800, seed=study)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 0.4 <= interval.high
    assert 0.90 <= covered / 200 <= 0.99


@pytest.mark.parametrize(("quantile", "n", "samples"), [(0.5, 6, 1), (0.5, 40, 3), (0.95, 73, 1), (0.95, 120, 3)])
def test_quantile_interval_coverage_of_clustered_times_is_near_level(quantile: float, n: int, samples: int) -> None:
    """The times of a question are much alike; an interval that takes them for independent would be too narrow."""
    rng, covered = np.random.default_rng(6), 0
    truth = np.exp(np.sqrt(1.04) * stats.norm.ppf(quantile))
    for _ in range(300):
        times = np.exp(rng.normal(0.0, 1.0, (n, 1)) + rng.normal(0.0, 0.2, (n, samples)))
        _, interval = quantile_interval(list(times), quantile)
        assert interval is not None
        covered += interval[0] <= truth <= interval[1]
    assert 0.92 <= covered / 300 <= 0.995


@pytest.mark.parametrize(("quantile", "enough"), [(0.5, 6), (0.95, 73), (0.05, 73)])
def test_quantile_interval_of_too_few_questions_to_bound_it_is_none(quantile: float, enough: int) -> None:
    values = [[float(i), float(i)] for i in range(enough)]
    assert quantile_interval(values, quantile)[1] is not None
    value, interval = quantile_interval(values[1:], quantile)
    assert (value, interval) == (np.quantile(values[1:], quantile), None)


def test_bootstrap_symmetric_data_agrees_with_students_interval() -> None:
    values = np.random.default_rng(2).normal(0.5, 0.1, 200)
    interval = bootstrap_mean_ci([[v] for v in values])
    expected = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx(expected, abs=6e-4)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.n == 200


def test_bootstrap_same_seed_is_identical_and_other_seed_is_not() -> None:
    values = [[v] for v in ndcg_like(np.random.default_rng(3), 30)]
    assert bootstrap_mean_ci(values, seed=4) == bootstrap_mean_ci(values, seed=4)
    assert bootstrap_mean_ci(values, seed=4) != bootstrap_mean_ci(values, seed=5)


def test_bootstrap_edges_single_question_no_spread_and_bounds() -> None:
    single = bootstrap_mean_ci([[0.2, 0.4]])
    assert (single.mean, single.n, single.interval) == (pytest.approx(0.3), 1, None)
    assert bootstrap_mean_ci([[0.1]] * 7).interval == pytest.approx([0.1, 0.1])
    rare = bootstrap_mean_ci([[0.0]] * 9 + [[1.0]], bounds=(0.0, 1.0)).interval
    assert rare is not None
    assert 0.0 <= rare[0] < 0.1 < rare[1] <= 1.0


@pytest.mark.parametrize(("solved", "n"), [(0, 20), (20, 20), (0, 2), (0, 500)])
def test_bootstrap_rate_without_spread_is_clopper_pearson(solved: int, n: int) -> None:
    found = bootstrap_mean_ci([[float(solved > 0)]] * n, bounds=(0.0, 1.0))
    expected = stats.binomtest(solved, n).proportion_ci(method="exact")
    assert found.interval == pytest.approx([expected.low, expected.high])


def test_bootstrap_bounded_mean_without_spread_reaches_towards_both_bounds() -> None:
    share = 1 - 0.025 ** (1 / 12)
    found = bootstrap_mean_ci([[0.6]] * 12, bounds=(0.0, 1.0)).interval
    assert found == pytest.approx([0.6 * (1 - share), 0.6 + 0.4 * share])
    same = paired_difference([[0.4]] * 12, [[0.4]] * 12, bounds=(-1.0, 1.0))
    assert (same.interval, same.p) == (pytest.approx([-share, share]), 1.0)


@pytest.mark.parametrize("rate", [0.02, 0.1])
def test_bootstrap_coverage_of_rare_successes_is_at_least_the_level(rate: float) -> None:
    """At a rate of 2% two of three studies of 20 questions have no success at all."""
    rng = np.random.default_rng(4)
    covered = 0
    for study in range(200):
        solved = (rng.random(20) < rate).astype(float)
        interval = bootstrap_mean_ci([[value] for value in solved], resamples=400, seed=study, bounds=(0.0, 1.0))
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= rate <= interval.high
    assert covered / 200 >= 0.95


@pytest.mark.parametrize("bad", [[], [[]], [[0.1], [float("nan")]]])
def test_bootstrap_nothing_to_average_raises(bad: list[list[float]]) -> None:
    with pytest.raises(DataError):
        bootstrap_mean_ci(bad)


def test_paired_difference_small_sample_p_is_exact() -> None:
    before, after = [[0.0]] * 5, [[0.1], [0.2], [0.3], [0.4], [0.5]]
    result = paired_difference(before, after)
    assert result.mean == pytest.approx(0.3)
    assert result.p == pytest.approx(2 / 32)
    assert result.n == 5


def test_paired_difference_agrees_with_scipy_permutation_test() -> None:
    rng = np.random.default_rng(6)
    before = rng.normal(0.4, 0.2, 40)
    after = before + rng.normal(0.05, 0.15, 40)
    result = paired_difference([[v] for v in before], [[v] for v in after], seed=1)
    reference = stats.permutation_test(
        (after, before),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        n_resamples=10_000,
        rng=np.random.default_rng(0),
    )
    assert result.p == pytest.approx(reference.pvalue, abs=0.015)
    assert result.low is not None
    assert result.high is not None
    assert result.low < after.mean() - before.mean() < result.high


def test_paired_difference_equal_systems_p_is_one_and_swap_mirrors() -> None:
    values = [[v] for v in ndcg_like(np.random.default_rng(7), 30)]
    same = paired_difference(values, values)
    assert (same.mean, same.p, same.interval) == (0.0, 1.0, [0.0, 0.0])
    other = [[v] for v in ndcg_like(np.random.default_rng(8), 30)]
    forth, back = paired_difference(values, other), paired_difference(other, values)
    assert forth.mean == pytest.approx(-back.mean)
    assert forth.p == back.p


def test_paired_difference_null_hypothesis_rejects_at_its_rate() -> None:
    rng = np.random.default_rng(9)
    rejected = 0
    for study in range(200):
        before, after = ndcg_like(rng, 25), ndcg_like(rng, 25)
        result = paired_difference([[v] for v in before], [[v] for v in after], resamples=400, seed=study)
        rejected += result.p <= 0.05
    assert 0.01 <= rejected / 200 <= 0.10


def test_paired_difference_unequal_questions_raise() -> None:
    with pytest.raises(DataError, match="2 questions before and 1 after"):
        paired_difference([[0.1], [0.2]], [[0.1]])


def test_rate_interval_single_rollouts_is_wilson() -> None:
    interval = rate_interval([[True]] * 3 + [[False]] * 17)
    expected = stats.binomtest(3, 20).proportion_ci(method="wilson")
    assert interval.interval == pytest.approx([expected.low, expected.high], abs=5e-3)


def test_rate_interval_no_failure_still_has_width() -> None:
    interval = rate_interval([[False]] * 50).interval
    assert interval is not None
    assert interval[0] == 0.0
    assert 0.05 < interval[1] < 0.1


def test_rate_interval_copies_of_rollouts_add_no_certainty() -> None:
    once = rate_interval([[True]] * 5 + [[False]] * 15)
    copied = rate_interval([[True] * 8] * 5 + [[False] * 8] * 15)
    assert copied.interval == pytest.approx(once.interval)


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 10, 30, 200])
def test_student_quantile_agrees_with_scipy(degrees: int) -> None:
    assert student_quantile(0.975, degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=5e-3)


@pytest.mark.slow
def test_bootstrap_coverage_of_many_clustered_skewed_studies_is_at_level() -> None:
    """2,000 studies of 150 questions x 4 samples, a fifth of the questions 0: between 93 and 97%."""
    from benchmarks.evaluation import coverage

    assert 0.93 <= coverage(2000) <= 0.97
