"""Vectors of queries: embedded together, and kept, since the episodes of a task ask alike."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from rl_cluster.models.embedder import Embedder, encode_queries

KEPT_QUERIES = 4096
"""Six megabytes of vectors of 384 dimensions."""
LONGEST_KEPT = 512
"""Characters of a query that is kept."""


class QueryVectors:
    """May be shared between threads; what one of them embeds meanwhile, another may embed once more."""

    def __init__(self, embedder: Embedder, prompt: str = "", kept: int = KEPT_QUERIES):
        """`prompt` stands before each query; `kept`: how many are, the ones asked for last."""
        self._embedder = embedder
        self._prompt = prompt
        self._kept = kept
        self._rows: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, queries: Sequence[str]) -> np.ndarray:
        """float32 `[queries, dimensions]`, each row of length 1; no row depends on the other queries."""
        found: dict[str, np.ndarray] = {}
        with self._lock:
            for query in queries:
                if query in self._rows:
                    self._rows.move_to_end(query)
                    found[query] = self._rows[query]
        missing = [query for query in dict.fromkeys(queries) if query not in found]
        if missing:
            rows = encode_queries(self._embedder, [self._prompt + query for query in missing])
            found |= zip(missing, rows, strict=True)
            with self._lock:
                for query, row in zip(missing, rows, strict=True):
                    if len(query) <= LONGEST_KEPT:
                        self._rows[query] = row.copy()  # the batch's array would be kept whole
                while len(self._rows) > self._kept:
                    self._rows.popitem(last=False)
        return np.stack([found[query] for query in queries])
