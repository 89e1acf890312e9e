"""Where the documents lie that a search must not show: looked up once for all searches of an episode, which name the same ids.

A published question may exclude ten thousand documents, and finding each by its id takes longer than the search itself.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Collection

import numpy as np

from rl_cluster.retrieval.documents import DocumentStore

MOST_POSITIONS = 4_000_000
"""Of all lists that are kept, four bytes each."""
_ENTRY = 64
"""What a list takes besides its positions, in positions."""


class Exclusions:
    """The lists of ids that were asked for last, as positions; may be shared between threads."""

    def __init__(self, documents: DocumentStore, most: int = MOST_POSITIONS):
        self._documents = documents
        self._most = most
        self._kept: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._taken = 0
        self._lock = threading.Lock()

    def positions(self, excluded: Collection[str]) -> np.ndarray:
        """int32 positions of the documents with these ids; ids that no document has are left out."""
        key = hashlib.blake2b(json.dumps(list(excluded)).encode(), digest_size=16).digest()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        ranks = (self._documents.position(doc_id) for doc_id in excluded)
        found = np.array([rank for rank in ranks if rank is not None], np.int32)
        with self._lock:
            if key not in self._kept:  # another thread may have been quicker
                self._kept[key] = found
                self._taken += _ENTRY + len(found)
            while self._taken > self._most and len(self._kept) > 1:
                self._taken -= _ENTRY + len(self._kept.popitem(last=False)[1])
        return found
