"""A mean over repeated runs (seeds) on the same questions, both of which are a sample.

Seeds and questions are crossed random effects; the variance of the grand mean is that of the seed means plus that of the
question means less the part that is in both (Brennan 2001, chapter 2), its degrees of freedom are Satterthwaite's (1946).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rl_cluster.errors import DataError
from rl_cluster.evaluation.statistics import MeanInterval, student_quantile


def mean_over_repeats(values_SQ: Sequence[Sequence[float]], level: float = 0.95) -> MeanInterval:
    """Interval of the mean for further seeds and further questions, from values [S seeds, Q questions]; `n` is Q.

    With one seed nothing is known of others, so the interval is None; likewise with one question. Raises DataError where the
    rows differ in length, are empty, or hold a value that is not finite.
    """
    if not values_SQ or len({len(row) for row in values_SQ}) != 1 or not len(values_SQ[0]):
        raise DataError(
            f"The repeats have {[len(row) for row in values_SQ]} questions; evaluate every seed on the same ones."
        )
    values = np.array(values_SQ, dtype=np.float64)
    if not np.isfinite(values).all():
        raise DataError("The repeats hold a value that is not finite; evaluate that seed again.")
    seeds, questions = values.shape
    mean = float(values.mean())
    if seeds < 2 or questions < 2:
        return MeanInterval(mean, None, None, questions, level)
    by_seed, by_question = values.mean(axis=1), values.mean(axis=0)
    residual = values - by_seed[:, None] - by_question[None, :] + mean
    degrees_residual = (seeds - 1) * (questions - 1)
    parts = [
        (float(by_seed.var(ddof=1)) / seeds, seeds - 1),
        (float(by_question.var(ddof=1)) / questions, questions - 1),
        (-float((residual**2).sum()) / degrees_residual / (seeds * questions), degrees_residual),
    ]
    # The residual is part of both others; where it is all that they are, they alone are kept.
    variance = max(sum(part for part, _ in parts), parts[0][0], parts[1][0])
    if variance == 0.0:
        return MeanInterval(mean, mean, mean, questions, level)
    degrees = variance**2 / sum(part**2 / free for part, free in parts)
    half = student_quantile((1 + level) / 2, max(1, math.floor(degrees))) * math.sqrt(variance)
    return MeanInterval(mean, mean - half, mean + half, questions, level)
