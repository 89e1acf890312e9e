"""What trec_eval does to its input, for runs that come as scores and judgements that are not whole numbers.

Its rankings are by score as a 32-bit float, ties by document id in descending order; its judgements are integers, so
fractional gains are scaled by one factor, which changes no nDCG with linear gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from rl_cluster.errors import DataError

_MAX_DENOMINATOR = 1_000_000


def ranking_of_scores(scores: Mapping[str, float]) -> list[str]:
    """Document ids, best first. Scores that differ in double precision alone are ties."""
    return sorted(scores, key=lambda doc_id: (np.float32(scores[doc_id]), doc_id), reverse=True)


def whole_gains(gains_by_query: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, dict[str, int]], int]:
    """The gains times the smallest factor that makes all of them integers, and that factor.

    Raises DataError for a gain that is negative, not finite, or finer than a millionth.
    """
    exact: dict[str, dict[str, Fraction]] = {}
    for query_id, gains in gains_by_query.items():
        exact[query_id] = {doc_id: _fraction(gain, query_id, doc_id) for doc_id, gain in gains.items()}
    factor = math.lcm(*(gain.denominator for gains in exact.values() for gain in gains.values()))
    scaled = {
        query_id: {doc_id: int(gain * factor) for doc_id, gain in gains.items()} for query_id, gains in exact.items()
    }
    return scaled, factor


def _fraction(gain: float, query_id: str, doc_id: str) -> Fraction:
    if not (math.isfinite(gain) and gain >= 0):
        raise DataError(f"Query {query_id!r} has the gain {gain} for {doc_id!r}; give numbers of at least 0.")
    fraction = Fraction(str(gain)).limit_denominator(_MAX_DENOMINATOR)
    if abs(float(fraction) - gain) > 1e-9 * max(gain, 1.0):
        raise DataError(f"Query {query_id!r} has the gain {gain} for {doc_id!r}; round it to a millionth.")
    return fraction
