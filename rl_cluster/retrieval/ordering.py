"""The one order of search results: higher score first, then the document that comes first in the corpus."""

from __future__ import annotations

import numpy as np

_SAMPLE = 8192


def top_positions(scores: np.ndarray, candidates: np.ndarray, k: int) -> np.ndarray:
    """The positions of the k best candidates.

    `scores` has one score per candidate, shape `[n]`; `candidates` their positions in the corpus, shape `[n]`.
    Returns at most k entries, ordered by (score descending, position ascending). Ties at the boundary are
    decided by position too, which a bare partition would leave to chance.
    """
    if len(candidates) > k:
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = scores >= threshold
        scores, candidates = scores[kept], candidates[kept]
    order = np.lexsort((candidates, -scores))
    return candidates[order[:k]]


def top_above(scores: np.ndarray, floor: float, k: int) -> np.ndarray:
    """The positions of the k best of those scores that are above `floor`, in the order of `top_positions`.

    `scores`, shape `[n]`, has one for each document of a collection.
    """
    if len(scores) > _SAMPLE:
        # The k-th best of a sample is never above the k-th best of all: one cheap pass leaves few candidates.
        sample = scores[:: len(scores) // _SAMPLE]
        if len(sample) > k:
            bound = np.partition(sample, len(sample) - k)[len(sample) - k]
            if bound > floor:
                candidates = np.flatnonzero(scores >= bound)
                return top_positions(scores[candidates], candidates, k)
    candidates = np.flatnonzero(scores > floor)
    return top_positions(scores[candidates], candidates, k)
