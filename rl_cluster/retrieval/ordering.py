"""The one order of search results: higher score first, then the document that comes first in the corpus."""

from __future__ import annotations

import numpy as np


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
