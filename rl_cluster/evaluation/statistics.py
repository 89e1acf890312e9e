"""How sure a mean over questions is. The question is the unit: rollouts of one question are averaged first.

Intervals are studentised bootstrap intervals (Efron and Tibshirani 1993, chapter 12), which follow skewed data such as
nDCG with many zeros; under some 20 questions no interval is exact. Where all questions have one value a bootstrap knows of no
other, and the interval is that of Clopper and Pearson (1934), see `_without_spread`. Everything is deterministic by its seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from rl_cluster.errors import DataError

_CHUNK_CELLS = 2_000_000
_MAX_STRETCH = 3.0
_EXACT_PAIRS = 12
FEW_QUESTIONS = 10
"""Under so many questions an interval is a rough guess, and whatever shows it says so."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean over n questions with its interval; low and high are None for n < 2, where the spread is unknown."""

    mean: float
    low: float | None
    high: float | None
    n: int
    level: float = 0.95

    @property
    def interval(self) -> list[float] | None:
        """[low, high], or None; JSON-ready."""
        return None if self.low is None or self.high is None else [self.low, self.high]

    @property
    def caution(self) -> str:
        """What a reader of the interval must know; empty where there are questions enough."""
        return f"only {self.n} questions: the interval is a rough guess" if self.n < FEW_QUESTIONS else ""


@dataclass(frozen=True)
class PairedDifference(MeanInterval):
    """Mean of after - before over n questions; `p` is the two-sided paired randomisation p-value."""

    p: float = 1.0


def bootstrap_mean_ci(
    values_by_question: Sequence[Sequence[float]],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> MeanInterval:
    """Mean of the question means and its interval, from one list of values (rollouts) per question.

    Questions are resampled, rollouts are not: their spread is part of that of the question means. `bounds` are the
    values that a question can take; the interval is cut to them. Values without any spread give an interval of width 0 where
    there are no bounds, since nothing is known then of what other questions may have.

    Raises DataError for no questions, a question without values, or a value that is not finite.
    """
    means = _question_means(values_by_question)
    if len(means) > 1 and _alike(means) and all(map(math.isfinite, bounds)):
        low, high = _without_spread(float(means[0]), len(means), level, bounds)
    else:
        low, high = _studentised(means, level, resamples, seed)
    if low is not None and high is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return MeanInterval(math.fsum(means) / len(means), low, high, len(means), level)


def paired_difference(
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> PairedDifference:
    """Mean over questions of after - before, both in the same order of questions, with interval and p-value.

    `bounds` are the values that a difference can take, see `bootstrap_mean_ci`.

    The p-value flips the sign of each question's difference: exactly for up to 12 differences that are not 0, otherwise
    `resamples` times at random (then at least 1 / (resamples + 1)). No difference at all gives 1.

    Raises DataError when the numbers of questions differ, and as `bootstrap_mean_ci`.
    """
    if len(before) != len(after):
        raise DataError(f"{len(before)} questions before and {len(after)} after are no pairs; evaluate the same ones.")
    differences = _question_means(after) - _question_means(before)
    interval = bootstrap_mean_ci([[value] for value in differences], level, resamples, seed, bounds)
    p = _randomisation_p(differences, resamples, seed)
    return PairedDifference(interval.mean, interval.low, interval.high, interval.n, level, p)


def rate_interval(flags_by_question: Sequence[Sequence[bool]], level: float = 0.95) -> MeanInterval:
    """A rate (mean of question rates) with a Wilson interval (1927), which stays honest at 0 and 1.

    Rollouts of one question are alike, so the sample size is the effective one: that which explains the spread of the
    question rates, between the number of questions and the number of rollouts. DataError as `bootstrap_mean_ci`.
    """
    rates = _question_means(flags_by_question)
    n, rate = len(rates), math.fsum(rates) / len(rates)
    if n < 2:
        return MeanInterval(rate, None, None, n, level)
    size = float(n)
    variance_of_mean = float(np.var(rates, ddof=1)) / n
    if 0 < rate < 1 and variance_of_mean > 0:
        size = rate * (1 - rate) / variance_of_mean
        size = min(max(size, float(n)), float(sum(len(flags) for flags in flags_by_question)))
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (rate + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * math.sqrt(rate * (1 - rate) / size + z * z / (4 * size * size))
    return MeanInterval(rate, max(min(centre - half, rate), 0.0), min(max(centre + half, rate), 1.0), n, level)


def quantile_interval(
    values_by_question: Sequence[Sequence[float]], quantile: float, level: float = 0.95
) -> tuple[float, list[float] | None]:
    """A quantile of all values, and its interval [low, high] for other questions.

    Woodruff's (1952): of each bound, the share of values up to it is just within Wilson's interval of a rate of `quantile`, with
    the effective sample size of `rate_interval`. A bootstrap of a quantile of few values covers far less than its level.

    The interval is None where so few questions may all lie on one side of the quantile: under 6 for a median, and under 73 for
    the 95th percentile, at 95%. DataError as `bootstrap_mean_ci`.
    """
    n, tail, far = len(_question_means(values_by_question)), (1 - level) / 2, max(quantile, 1 - quantile)
    values = np.concatenate([np.sort(np.asarray(found, dtype=np.float64)) for found in values_by_question])
    value, z = float(np.quantile(values, quantile)), NormalDist().inv_cdf(1 - tail)
    if far**n > tail or n * (1 - far) <= z * z * far:
        return value, None
    order = np.argsort(values, kind="stable")
    sizes = np.concatenate([np.full(len(found), len(found)) for found in values_by_question])[order]
    places = np.concatenate([np.arange(len(found)) for found in values_by_question])[order]
    # The shares of each question's values that are passed so far: their mean, and the variance of that mean.
    share = np.cumsum(1 / sizes) / n
    squares = np.cumsum((2 * places + 1) / sizes**2) / n
    variance = np.maximum(squares - share**2, 1e-15) / (n - 1)
    effective = np.clip(share * (1 - share) / variance, n, len(values))
    reach = z * np.sqrt(quantile * (1 - quantile) / effective)
    ordered = values[order]
    low, high = ordered[(share >= quantile - reach).argmax()], ordered[(share > quantile + reach).argmax()]
    # Between two values the quantile itself is interpolated, the bounds are not.
    return value, [min(float(low), value), max(float(high), value)]


def student_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees, else the Cornish-Fisher series.

    It is within 0.5% for an interval of level 95% and within 4% for one of 99.8%, and from 5 degrees on within 0.5% for both.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))


def _question_means(values_by_question: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    if not len(values_by_question):
        raise DataError("There is no question to average over; check the split and its filters.")
    for place, values in enumerate(values_by_question):
        if not len(values) or not all(math.isfinite(value) for value in values):
            raise DataError(f"Question {place} has the values {list(values)[:5]}; give at least one, all finite.")
    return np.array([math.fsum(values) / len(values) for values in values_by_question], dtype=np.float64)


def _alike(means: npt.NDArray[np.float64]) -> bool:
    return float(means.std(ddof=1)) <= 1e-12 * max(1.0, abs(float(means.mean())))


def _without_spread(value: float, n: int, level: float, bounds: tuple[float, float]) -> tuple[float, float]:
    """The interval of a mean of values within `bounds` when all n questions had `value`.

    If a share s of all questions had another value, n questions would all have this one with probability (1 - s)^n. The
    largest s that leaves it (1 - level) / 2 is Clopper and Pearson's bound (1934) of a rate that was 0 of n; the mean is then
    at most s of the way from `value` to either bound. For a rate itself the interval is theirs.
    """
    share = 1 - ((1 - level) / 2) ** (1 / n)
    return value - share * (value - bounds[0]), value + share * (bounds[1] - value)


def _studentised(
    means: npt.NDArray[np.float64], level: float, resamples: int, seed: int
) -> tuple[float | None, float | None]:
    n = len(means)
    if n < 2:
        return None, None
    mean, spread = float(means.mean()), float(means.std(ddof=1))
    if _alike(means):
        return mean, mean
    rng = np.random.default_rng(seed)

    def statistic(count: int) -> npt.NDArray[np.float64]:
        sample = means[rng.integers(0, n, (count, n))]
        shift = sample.mean(axis=1) - mean
        sample_spread = sample.std(axis=1, ddof=1)
        degenerate = sample_spread <= 1e-9 * spread
        ratio = shift / (np.where(degenerate, 1.0, sample_spread) / math.sqrt(n))
        ratio[degenerate & (shift > 0)] = np.inf
        ratio[degenerate & (shift < 0)] = -np.inf
        return ratio

    ratios = _in_chunks(statistic, resamples, n)
    tail = (1 - level) / 2
    lower, upper = np.quantile(ratios, [tail, 1 - tail], method="inverted_cdf")
    # With few distinct values some resamples have next to no spread; their ratios say nothing beyond "wide".
    limit = _MAX_STRETCH * student_quantile(1 - tail, n - 1)
    scale = spread / math.sqrt(n)
    return mean - scale * min(float(upper), limit), mean - scale * max(float(lower), -limit)


def _randomisation_p(differences: npt.NDArray[np.float64], resamples: int, seed: int) -> float:
    moved = differences[differences != 0.0]
    if not len(moved):
        return 1.0
    # Sums that are equal but for rounding count as equal.
    threshold = abs(moved.sum()) - 1e-9 * np.abs(moved).sum()
    if len(moved) <= _EXACT_PAIRS:
        signs = 1 - 2 * ((np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1)
        return float(np.mean(np.abs(signs @ moved) >= threshold))
    rng = np.random.default_rng(seed)

    def as_extreme(count: int) -> npt.NDArray[np.float64]:
        signs = 1 - 2 * rng.integers(0, 2, (count, len(moved)), dtype=np.int8)
        return (np.abs(signs @ moved) >= threshold).astype(np.float64)

    extreme = _in_chunks(as_extreme, resamples, len(moved))
    return float((1 + extreme.sum()) / (1 + len(extreme)))


def _in_chunks(draw: Callable[[int], npt.NDArray[np.float64]], resamples: int, n: int) -> npt.NDArray[np.float64]:
    """`resamples` draws in blocks of bounded memory."""
    size = max(1, _CHUNK_CELLS // n)
    counts = [min(size, resamples - start) for start in range(0, resamples, size)]
    return np.concatenate([draw(count) for count in counts])
