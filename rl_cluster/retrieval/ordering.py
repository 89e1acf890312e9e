"""The one order of search results: higher score first, then the document that comes first in the corpus."""

from __future__ import annotations

import numpy as np

_SLICES = 64


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
    whole = len(scores) - len(scores) % _SLICES
    # Each column is a pile of documents; the largest score of each is found at the speed of memory.
    piles = scores[:whole].reshape(_SLICES, -1)
    if piles.shape[1] > k:
        largest = piles.max(axis=0)
        # The k-th best of some documents is never above the k-th best of all.
        bound = np.partition(largest, len(largest) - k)[len(largest) - k]
        if bound > floor:
            columns = np.flatnonzero(largest >= bound)
            slices, inside = np.nonzero(piles[:, columns] >= bound)
            rest = whole + np.flatnonzero(scores[whole:] >= bound)
            candidates = np.concatenate([slices * piles.shape[1] + columns[inside], rest])
            return top_positions(scores[candidates], candidates, k)
    candidates = np.flatnonzero(scores > floor)
    return top_positions(scores[candidates], candidates, k)
