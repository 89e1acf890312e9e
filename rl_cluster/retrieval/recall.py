"""How many of the nearest documents an approximate index finds: measured when it is built, and said where it is little.

How well a graph or lists of codes do depends on the collection: many near-copies of each text can part a graph into pieces that no
walk connects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_cluster.models.embedder import Embedder, encode_queries
from rl_cluster.retrieval.documents import DocumentStore

if TYPE_CHECKING:
    from rl_cluster.retrieval.vector import VectorIndex

ENOUGH = 0.95
_QUESTIONS = 100
_WORDS = 6
_CHARACTERS = 200
_K = 10
_MENDS = {
    "hnsw": "raise search.vector.search_breadth, or set search/vector=ivf_pq or flat",
    "ivf_pq": "raise search.vector.refine and search.vector.probes, or set search/vector=flat",
}


def measured_recall(documents: DocumentStore, vector: VectorIndex, embedder: Embedder, prompt: str) -> float | None:
    """The mean share of the ten nearest documents that are found, or others as near, over a hundred questions of six words from the
    middle of documents that lie evenly over the collection; `prompt` stands before each. None for an index that compares all documents."""
    from rl_cluster.retrieval.vector import VectorIndex

    if vector.settings.kind == "flat":
        return None
    asked = np.unique(np.linspace(0, len(documents) - 1, _QUESTIONS).astype(int)).tolist()
    texts = [text for position in asked for _, text in documents.texts(position, position + 1)]
    rows = encode_queries(embedder, [prompt + _middle(text) for text in texts])
    number = len(asked)
    exact, found = (
        index.search_many(rows, [_K] * number, [None] * number) for index in (VectorIndex(vector.embeddings), vector)
    )
    shares = [
        sum(score >= best[-1][1] for _, score in ours) / max(1, len(best))
        for best, ours in zip(exact, found, strict=True)
    ]
    return float(np.mean(shares))


def recall_warning(manifest: Mapping[str, Any]) -> str:
    """A sentence where an index finds less than `ENOUGH`; empty otherwise."""
    recall = manifest.get("recall")
    if recall is None or recall >= ENOUGH:
        return ""
    kind = manifest["settings"]["vector"]["kind"]
    return (
        f"search/vector={kind} finds {recall:.2f} of the ten nearest documents of corpus {manifest['corpus']!r}, measured on words from "
        f"them; {_MENDS[kind]}."
    )


def _middle(text: str) -> str:
    words = text.split()
    start = max(0, len(words) // 2 - _WORDS // 2)
    return " ".join(words[start : start + _WORDS])[:_CHARACTERS]
