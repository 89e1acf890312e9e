"""Ranking metrics and success rates over repeated rollouts, for one question each.

nDCG has linear gains and log2(rank + 1) discounts (Jarvelin and Kekalainen 2002), as trec_eval has; pass@k is unbiased
(2107.03374), pass^k as in tau-bench (2406.12045). Means over questions are in `summary` and `statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def ndcg_at_k(ranking: Sequence[str], gains: Mapping[str, float], k: int = 10) -> float | None:
    """nDCG of the first k places, in [0, 1]; None for a question without a positive gain, which has no ideal.

    The ideal ranking is over all judged documents, retrieved or not. Unjudged documents gain 0. A repeated document
    scores once: its later copies keep their rank and gain 0. ValueError for k < 1.
    """
    _require_k(k)
    ideal = sorted((gain for gain in gains.values() if gain > 0), reverse=True)[:k]
    if not ideal:
        return None
    seen: set[str] = set()
    found = []
    for doc_id in ranking[:k]:
        found.append(0.0 if doc_id in seen else max(gains.get(doc_id, 0.0), 0.0))
        seen.add(doc_id)
    return _dcg(found) / _dcg(ideal)


def recall_at_k(ranking: Sequence[str], gains: Mapping[str, float], k: int = 10) -> float | None:
    """Share of the documents of positive gain among the first k places; None without one. ValueError for k < 1."""
    _require_k(k)
    relevant = {doc_id for doc_id, gain in gains.items() if gain > 0}
    if not relevant:
        return None
    return len(relevant & set(ranking[:k])) / len(relevant)


def reciprocal_rank(ranking: Sequence[str], gains: Mapping[str, float]) -> float | None:
    """1 / place of the first document of positive gain, 0 where there is none; None for a question without one."""
    relevant = {doc_id for doc_id, gain in gains.items() if gain > 0}
    if not relevant:
        return None
    return next((1.0 / place for place, doc_id in enumerate(ranking, start=1) if doc_id in relevant), 0.0)


def pass_at_k(rollouts: int, successes: int, k: int) -> float:
    """Chance that at least one of k of the rollouts succeeds: 1 - C(n - c, k) / C(n, k).

    ValueError unless 1 <= k <= rollouts and 0 <= successes <= rollouts.
    """
    _require_counts(rollouts, successes, k)
    return 1.0 - math.comb(rollouts - successes, k) / math.comb(rollouts, k)


def pass_power_k(rollouts: int, successes: int, k: int) -> float:
    """Chance that all of k of the rollouts succeed: C(c, k) / C(n, k); ValueError as `pass_at_k`."""
    _require_counts(rollouts, successes, k)
    return math.comb(successes, k) / math.comb(rollouts, k)


def _dcg(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(place + 2) for place, gain in enumerate(gains))


def _require_k(k: int) -> None:
    if k < 1:
        raise ValueError(f"k={k} is no number of places; give at least 1.")


def _require_counts(rollouts: int, successes: int, k: int) -> None:
    if not 1 <= k <= rollouts or not 0 <= successes <= rollouts:
        raise ValueError(
            f"k={k}, successes={successes} and rollouts={rollouts} do not fit; both are at most the rollouts."
        )
