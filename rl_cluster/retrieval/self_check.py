"""Questions with known answers: asked when an index is opened, so that one that answers wrongly is never used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rl_cluster.errors import IndexFormatError
from rl_cluster.retrieval.documents import DocumentStore
from rl_cluster.retrieval.lexical import LexicalIndex

_WORDS = 6
_RESULTS = 3
_CHARACTERS = 200
"""Of a question: where no spaces part words, six of them are a whole text."""


def known_answers(documents: DocumentStore, lexical: LexicalIndex | None, vector: Any | None) -> dict[str, Any]:
    """Questions about the first, the middle and the last document, with what the index answers when it is made."""
    asked = sorted({0, len(documents) // 2, len(documents) - 1})
    answers: dict[str, Any] = {}
    if lexical is not None:
        queries = [
            " ".join(f"{title[:_CHARACTERS]} {text[:_CHARACTERS]}".split()[:_WORDS])[:_CHARACTERS]
            for p in asked
            for title, text in documents.texts(p, p + 1)
        ]
        answers["lexical"] = [[query, _positions(lexical.search(query, _RESULTS))] for query in queries]
    if vector is not None:
        answers["vector"] = [[position, *_vector_answer(vector, position)] for position in asked]
    return answers


def check_answers(folder: Path, manifest: dict[str, Any], lexical: LexicalIndex | None, vector: Any | None) -> None:
    """Raises IndexFormatError where an opened index does not give the answers in its manifest."""
    answers = manifest.get("answers", {})
    try:
        for query, expected in answers.get("lexical", []) if lexical is not None else []:
            assert lexical is not None
            _compare(folder, repr(query), _positions(lexical.search(query, _RESULTS)), expected)
        for position, *expected in answers.get("vector", []) if vector is not None else []:
            _compare(folder, f"the vector of document {position}", _vector_answer(vector, position), expected)
    except (IndexError, ValueError, OverflowError) as error:  # numbers that point to nowhere
        if isinstance(error, IndexFormatError):
            raise
        raise IndexFormatError(
            f"{folder}: it cannot answer a known question ({error}); delete it and build again."
        ) from error


def rows_agree(manifest: dict[str, Any], embeddings: np.ndarray) -> bool:
    """Whether the rows that the manifest's questions are about are what they were."""
    return all(_product(embeddings, position) == product for position, product, _ in manifest["answers"]["vector"])


def _compare(folder: Path, question: str, found: list[Any], expected: list[Any]) -> None:
    if found != expected:
        raise IndexFormatError(
            f"{folder}: it answers {question} with {found} instead of {expected}; delete it and build again."
        )


def _positions(found: list[tuple[int, float]]) -> list[int]:
    return [position for position, _ in found]


def _vector_answer(vector: Any, position: int) -> list[Any]:
    """What a row gives with the first row, and where an approximate index finds it.

    A flat index is not searched here: that would read all of it from the disk.
    """
    flat = vector.settings.kind == "flat"
    found = [] if flat else _positions(vector.search(vector.embeddings[position], _RESULTS))
    return [_product(vector.embeddings, position), found]


def _product(embeddings: np.ndarray, position: int) -> float:
    return float((embeddings[position].astype(np.float64) * embeddings[0].astype(np.float64)).sum())
