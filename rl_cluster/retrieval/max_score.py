"""The k best documents of a sum of term weights, without reading what cannot change them.

MaxScore (Turtle and Flood, "Query evaluation: strategies and optimizations", 1995), over whole columns: terms are added from
the rarest to the most frequent, and once the k-th best sum so far exceeds what all terms to come could add, only documents
that can still reach it are looked up in their columns. The answer is that of adding every column whole, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_cluster.retrieval.ordering import top_above, top_positions

_NONE = np.zeros(0, np.int32)
LONG_COLUMN = 4096
"""Entries from which on it pays to ask whether a column must be read."""


@dataclass(frozen=True)
class Column:
    """One term of a query: `documents` int32 `[entries]`, ascending; `weights` float32 `[entries]`, all above 0; `times`, how often
    the query has it; `bound`, at least the largest weight times `times`."""

    documents: np.ndarray
    weights: np.ndarray
    times: int
    bound: float


def best_documents(
    columns: Sequence[Column], k: int, scores: np.ndarray, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores of at most k documents with a score above 0, best first, ties by position.

    `scores`: float64 `[documents]`, all 0, and all 0 again afterwards. `allowed`: bool `[documents]`; where it is false a document
    is left out. Sums of a few float32 numbers are exact in float64, so that the order of the terms changes no score.
    """
    ordered = sorted(columns, key=lambda column: len(column.documents))
    # to_come[i]: the most that the terms from the i-th on can add.
    to_come = np.cumsum([0.0, *(column.bound for column in reversed(ordered))])[::-1].tolist()
    touched: list[np.ndarray] = []
    read = 0
    candidates = None
    while read < len(ordered):
        if len(ordered[read].documents) >= LONG_COLUMN and sum(map(len, touched)) >= k:
            candidates = _within_reach(np.concatenate(touched), k, scores, to_come[read])
            if candidates is not None:
                break
        touched.append(_added(ordered[read], scores, allowed))
        read += 1
    if candidates is None:
        candidates = np.concatenate([*touched, _NONE])
    for place in range(read, len(ordered)):
        _look_up(ordered[place], candidates, scores)
        if place + 1 < len(ordered):
            candidates = _still_within_reach(candidates, k, scores, to_come[place + 1])
    found = scores[candidates]
    best = top_positions(found, candidates, k)
    result = best, scores[best]
    for documents in touched:
        scores[documents] = 0.0
    return result


def best_of_all(
    columns: Sequence[Column], k: int, num_documents: int, allowed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """As `best_documents`, where weights may be 0 and a document with such a term matches all the same: every column is added
    whole."""
    scores, matching = np.zeros(num_documents), np.zeros(num_documents, bool)
    for column in columns:
        scores[column.documents] += column.times * column.weights.astype(np.float64)
        matching[column.documents] = True
    if allowed is not None:
        matching &= allowed
    scores[~matching] = -np.inf
    best = top_above(scores, -np.inf, k)
    return best, scores[best]


def _added(column: Column, scores: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    """Adds a whole column; returns the documents that no column before held."""
    documents, weights = column.documents, column.weights
    if allowed is not None:
        inside = allowed[documents]
        documents, weights = documents[inside], weights[inside]
    before = scores[documents]
    scores[documents] = before + column.times * weights.astype(np.float64)
    return documents[before == 0.0]


def _within_reach(candidates: np.ndarray, k: int, scores: np.ndarray, to_come: float) -> np.ndarray | None:
    """Those of all documents held so far that can still be among the k best; None where a document not held can be too."""
    if _kth_best(scores[candidates], k) <= to_come:
        return None
    return _still_within_reach(candidates, k, scores, to_come)


def _still_within_reach(candidates: np.ndarray, k: int, scores: np.ndarray, to_come: float) -> np.ndarray:
    sums = scores[candidates]
    return candidates[sums + to_come >= _kth_best(sums, k)]


def _kth_best(sums: np.ndarray, k: int) -> float:
    return float(np.partition(sums, len(sums) - k)[len(sums) - k])


def _look_up(column: Column, candidates: np.ndarray, scores: np.ndarray) -> None:
    """Adds a column at the candidates alone."""
    places = np.searchsorted(column.documents, candidates)
    places[places == len(column.documents)] = 0
    held = column.documents[places] == candidates
    scores[candidates[held]] += column.times * column.weights[places[held]].astype(np.float64)
