"""Questions with known answers: asked when an index is opened, so that one that answers wrongly is never used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rl_cluster.errors import IndexFormatError
from rl_cluster.retrieval.corpus import Corpus
from rl_cluster.retrieval.lexical import LexicalIndex

_WORDS = 6
_RESULTS = 3


def known_answers(corpus: Corpus, lexical: LexicalIndex | None, vector: Any | None) -> dict[str, Any]:
    """Questions about the first, the middle and the last document, with what the index answers when it is made."""
    asked = sorted({0, len(corpus) // 2, len(corpus) - 1})
    answers: dict[str, Any] = {}
    if lexical is not None:
        queries = [
            " ".join(f"{title} {text}".split()[:_WORDS]) for p in asked for title, text in corpus.texts(p, p + 1)
        ]
        answers["lexical"] = [[query, _positions(lexical.search(query, _RESULTS))] for query in queries]
    if vector is not None:
        answers["vector"] = [[position, *_vector_answer(vector, position)] for position in asked]
    return answers


def check_answers(folder: Path, manifest: dict[str, Any], lexical: LexicalIndex | None, vector: Any | None) -> None:
    """Raises IndexFormatError where an opened index does not give the answers in its manifest."""
    answers = manifest.get("answers", {})
    for query, expected in answers.get("lexical", []) if lexical is not None else []:
        assert lexical is not None
        found = _positions(lexical.search(query, _RESULTS))
        if found != expected:
            raise IndexFormatError(
                f"{folder}: it answers {query!r} with the documents {found} instead of {expected}; delete it and build again."
            )
    for position, *expected in answers.get("vector", []) if vector is not None else []:
        found = _vector_answer(vector, position)
        if found != expected:
            raise IndexFormatError(
                f"{folder}: its vector of document {position} gives {found} instead of {expected}; delete it and build again."
            )


def _positions(found: list[tuple[int, float]]) -> list[int]:
    return [position for position, _ in found]


def _vector_answer(vector: Any, position: int) -> list[Any]:
    """What a row gives with the first row, and where an approximate index finds it.

    A flat index is not searched here: that would read all of it from the disk.
    """
    row = vector.embeddings[position]
    product = float((row.astype(np.float64) * vector.embeddings[0].astype(np.float64)).sum())
    found = [] if vector.settings.kind == "flat" else _positions(vector.search(row, _RESULTS))
    return [product, found]
