"""How much of a gain in nDCG is better ranking and how much is fewer failures, when only aggregates were published.

The paired decomposition, which needs the episodes, is part of `summary.compare`. Here newly finished questions may be harder
or easier than the others, which aggregates cannot tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl_cluster.errors import DataError


@dataclass(frozen=True)
class Decomposition:
    """failure_avoidance + ranking = gain."""

    gain: float
    failure_avoidance: float
    ranking: float


def decompose_published(
    score_before: float, failures_before: float, score_after: float, failures_after: float
) -> Decomposition:
    """From mean scores in which failures count 0, and failure rates in [0, 1].

    failure_avoidance = change of the finished share x conditional score before; ranking = finished share after x change of
    the conditional score. A system that finished nothing has no conditional score: the other's stands in for it, so that all
    of the gain is failure avoidance. Raises DataError for a rate or score outside [0, 1], or a score over the finished share.
    """
    finished = []
    for score, failures in ((score_before, failures_before), (score_after, failures_after)):
        if not 0.0 <= failures <= 1.0 or not 0.0 <= score <= 1.0 - failures + 1e-12:
            raise DataError(
                f"A mean score of {score} with failures of {failures} cannot be; give shares in [0, 1], where the score is at "
                "most the finished share."
            )
        finished.append(1.0 - failures)
    before, after = finished
    conditional_after = score_after / after if after else None
    conditional_before = score_before / before if before else conditional_after
    avoidance = (after - before) * (conditional_before or 0.0)
    gain = score_after - score_before
    return Decomposition(gain, avoidance, gain - avoidance)
