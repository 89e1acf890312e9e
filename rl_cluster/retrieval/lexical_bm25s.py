"""BM25 with bm25s: its formulas, its matrix of weights with terms as columns, and its files.

bm25s returns documents that share no word with the query, fails where k exceeds the collection and leaves ties to
chance; and it counts terms in Python. So terms are counted by `postings`, and here the columns of a query's terms are
added and the k best are chosen. It is imported to build and to write only: it loads numba, which would take a third of
the memory of a process that serves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_cluster.retrieval.arrays import load_array
from rl_cluster.retrieval.ordering import top_above
from rl_cluster.retrieval.postings import Postings, count_terms
from rl_cluster.retrieval.string_table import StringTable
from rl_cluster.retrieval.token_blocks import TokenBlock

# All compute with float64 and store float32 (relative error 6e-8). Formulas: Lù, "BM25S" (2024), table 1, after
# Kamphuis et al., "Which BM25 do you mean?" (ECIR 2020).
VARIANTS = ("lucene", "robertson", "atire", "bm25l", "bm25+")
_BLOCK_ENTRIES = 4_000_000
_ABSENT_FILE = "nonoccurrence_array.index.npy"


@dataclass(frozen=True)
class _Matrix:
    """The weights of one term lie at `starts[term]` to `starts[term + 1]`.

    `data`: float32 `[entries]`; `documents`: int32 `[entries]`, ascending within a term; `starts`: int64 `[terms + 1]`.
    `absent`: float32 `[terms]`, what a term gives where it does not occur (BM25L, BM25+), or None; `data` then holds what
    exceeds it.
    """

    data: np.ndarray
    documents: np.ndarray
    starts: np.ndarray
    absent: np.ndarray | None
    num_documents: int


class Bm25sBackend:
    """Weights of documents, which are named by their positions."""

    def __init__(
        self,
        matrix: _Matrix,
        vocabulary: StringTable,
        term_numbers: np.ndarray,
        constants: dict[str, Any],
    ):
        """`term_numbers`: int32 `[terms]`, the column of each vocabulary entry; `constants`: method, k1, b, delta."""
        self._matrix = matrix
        self._vocabulary = vocabulary
        self._term_numbers = term_numbers
        self._constants = constants
        self._local = threading.local()

    def __len__(self) -> int:
        return self._matrix.num_documents

    @classmethod
    def build(cls, blocks: Iterable[TokenBlock], method: str, k1: float, b: float, delta: float) -> Bm25sBackend:
        """Weighs the tokens of each document, in the order of positions."""
        postings, vocabulary = count_terms(blocks)
        absent, data = _weights(postings, method, k1, b, delta)
        matrix = _Matrix(data, postings.documents, postings.starts, absent, postings.num_documents)
        words = sorted(vocabulary)
        numbers = np.array([vocabulary[word] for word in words], np.int32)
        return cls(matrix, StringTable.of(words), numbers, {"method": method, "k1": k1, "b": b, "delta": delta})

    def search(self, tokens: Sequence[str], k: int, allowed: np.ndarray | None = None) -> list[tuple[int, float]]:
        """(position, score) of at most k documents that hold one of the tokens, best first, ties by position.

        `allowed`: bool `[documents]`; where it is false a document is left out.
        """
        terms = self._terms(tokens)
        if not terms:
            return []
        scores, floor = self._scores(terms, allowed)
        best = top_above(scores, floor, k)
        absent = self._matrix.absent
        base = 0.0 if absent is None else sum(float(absent[term]) * times for term, times in terms.items())
        return [(int(i), float(scores[i]) + base) for i in best]

    def _terms(self, tokens: Sequence[str]) -> dict[int, int]:
        """Term number -> how often it occurs among the tokens, in ascending order of numbers."""
        terms: dict[int, int] = {}
        for token in tokens:
            rank = self._vocabulary.find(token)
            if rank >= 0:
                term = int(self._term_numbers[rank])
                terms[term] = terms.get(term, 0) + 1
        return dict(sorted(terms.items()))

    def _scores(self, terms: dict[int, int], allowed: np.ndarray | None) -> tuple[np.ndarray, float]:
        """One score per document, float64, and the value that those of no interest do not exceed."""
        matrix = self._matrix
        scores = getattr(self._local, "scores", None)
        if scores is None:
            scores = self._local.scores = np.empty(len(self), np.float64)
        scores.fill(0.0)
        weightless = []
        for term, times in terms.items():
            column = slice(int(matrix.starts[term]), int(matrix.starts[term + 1]))
            documents = matrix.documents[column]
            if len(documents) and matrix.data[column.start] == 0:
                weightless.append(documents)
            else:
                # Sums of a few float32 numbers are exact in float64, so that neither the order of the words nor a
                # division into shards can change a score. `add.at` is the quickest way where both types agree.
                np.add.at(scores, documents, times * matrix.data[column].astype(np.float64))
        floor = 0.0
        if weightless:
            # A term of idf 0 (in more than half of all documents, with some variants) still makes a document match.
            matching = scores > 0
            for documents in weightless:
                matching[documents] = True
            scores[~matching] = floor = -np.inf
        if allowed is not None:
            scores[~allowed] = floor
        return scores, floor

    def cut(self, start: int, stop: int) -> Bm25sBackend:
        """The documents at positions `start` to `stop`, which become 0 and so on, with the weights they have among all."""
        matrix = self._matrix
        inside = (matrix.documents >= start) & (matrix.documents < stop)
        before = np.zeros(len(inside) + 1, np.int64)
        np.cumsum(inside, out=before[1:])
        part = _Matrix(
            data=matrix.data[inside],
            documents=matrix.documents[inside] - np.int32(start),
            starts=before[matrix.starts],
            absent=matrix.absent,
            num_documents=stop - start,
        )
        return Bm25sBackend(part, self._vocabulary, self._term_numbers, self._constants)

    def save(self, folder: Path) -> None:
        """Writes the matrix as bm25s does, which can open the folder too, and the vocabulary beside it."""
        import bm25s

        matrix = self._matrix
        engine = bm25s.BM25(**self._constants, backend="numpy")
        engine.vocab_dict = {}
        engine.nonoccurrence_array = matrix.absent
        engine.scores = {
            "data": matrix.data,
            "indices": matrix.documents,
            "indptr": matrix.starts,
            "num_docs": matrix.num_documents,
        }
        engine.save(str(folder), show_progress=False)
        self._vocabulary.save(folder, "vocabulary")
        np.save(folder / "term_numbers.npy", self._term_numbers)

    @classmethod
    def load(cls, folder: Path, num_documents: int, **constants: Any) -> Bm25sBackend:
        """Opens a folder memory-mapped. Raises IndexFormatError where a file is missing or damaged."""
        absent = folder / _ABSENT_FILE
        matrix = _Matrix(
            data=load_array(folder / "data.csc.index.npy", np.float32, 1),
            documents=load_array(folder / "indices.csc.index.npy", np.int32, 1),
            starts=load_array(folder / "indptr.csc.index.npy", np.int64, 1),
            absent=load_array(absent, np.float32, 1) if constants["method"] in ("bm25l", "bm25+") else None,
            num_documents=num_documents,
        )
        numbers = load_array(folder / "term_numbers.npy", np.int32, 1)
        return cls(matrix, StringTable.load(folder, "vocabulary"), numbers, constants)


def _weights(
    postings: Postings, method: str, k1: float, b: float, delta: float
) -> tuple[np.ndarray | None, np.ndarray]:
    """The score of a term where it does not occur (float32 `[terms]`, or None) and where it does (float32 `[entries]`)."""
    from bm25s import scoring

    frequencies = np.diff(postings.starts)
    # 1 where no document holds a token: then nothing is weighed, and no division by 0 happens on the way.
    average = float(postings.lengths.mean()) if postings.lengths.any() else 1.0
    idf = _idf(frequencies, postings.num_documents, method)
    tfc = scoring._select_tfc_scorer(method)
    absent = None
    if method in ("bm25l", "bm25+"):
        absent = idf * tfc(tf_array=0.0, l_d=average, l_avg=average, k1=k1, b=b, delta=delta)
    data = np.empty(len(postings.documents), np.float32)
    term = 0
    while term < postings.num_terms:
        # Whole columns, as many as fit into a block: the intermediate values take several times the result.
        stop = int(np.searchsorted(postings.starts, postings.starts[term] + _BLOCK_ENTRIES, side="right")) - 1
        stop = max(term + 1, stop)
        entries = slice(int(postings.starts[term]), int(postings.starts[stop]))
        lengths = postings.lengths[postings.documents[entries]]
        counts = postings.counts[entries].astype(np.float64)
        weights = np.repeat(idf[term:stop], frequencies[term:stop])
        weights *= tfc(tf_array=counts, l_d=lengths, l_avg=average, k1=k1, b=b, delta=delta)
        if absent is not None:
            weights -= np.repeat(absent[term:stop], frequencies[term:stop])
        data[entries] = weights
        term = stop
    return None if absent is None else absent.astype(np.float32), data


def _idf(frequencies: np.ndarray, num_documents: int, method: str) -> np.ndarray:
    """float64 `[terms]`; bm25s' formula takes one frequency at a time, and few different ones occur."""
    from bm25s import scoring

    formula = scoring._select_idf_scorer(method)
    different, where = np.unique(frequencies, return_inverse=True)
    return np.array([formula(int(df), N=num_documents) for df in different], np.float64)[where]
