"""BM25 with rank-bm25, a plain and slow implementation to compare others with.

It scores every document in float64 and keeps all tokens in memory; use it for small collections.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import rank_bm25

from rl_cluster.errors import IndexFormatError
from rl_cluster.retrieval.arrays import load_array
from rl_cluster.retrieval.ordering import top_positions
from rl_cluster.retrieval.string_table import StringTable

# Its BM25L multiplies by the count of the term once more than the paper does (Lv and Zhai, SIGIR 2011).
VARIANTS = ("okapi", "bm25l", "bm25+")
_CLASSES = {"okapi": rank_bm25.BM25Okapi, "bm25l": rank_bm25.BM25L, "bm25+": rank_bm25.BM25Plus}


class RankBm25Backend:
    """The tokens of documents, which are named by their positions."""

    def __init__(self, model: rank_bm25.BM25 | None, documents: list[list[str]]):
        """`model`: None where no document holds a token, since rank-bm25 divides by their number."""
        self._model = model
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    @classmethod
    def build(
        cls, token_lists: Iterable[Sequence[str]], method: str, k1: float, b: float, delta: float
    ) -> RankBm25Backend:
        """Counts the tokens of each document, in the order of positions."""
        documents = [list(tokens) for tokens in token_lists]
        constants = {"k1": k1, "b": b} if method == "okapi" else {"k1": k1, "b": b, "delta": delta}
        return cls(_CLASSES[method](documents, **constants) if any(documents) else None, documents)

    def search(self, tokens: Sequence[str], k: int, allowed: np.ndarray | None = None) -> list[tuple[int, float]]:
        """(position, score) of at most k documents that hold one of the tokens, best first, ties by position.

        `allowed`: bool `[documents]`; where it is false a document is left out.
        """
        if self._model is None:
            return []
        with np.errstate(invalid="ignore"):  # b = 1 divides 0 by 0 for a document without tokens, which never matches
            scores = self._model.get_scores(list(tokens))
        matching = np.array([any(token in counts for token in tokens) for counts in self._model.doc_freqs])
        if allowed is not None:
            matching &= allowed
        candidates = np.flatnonzero(matching)
        best = top_positions(scores[candidates], candidates, k)
        return [(int(i), float(scores[i])) for i in best]

    def save(self, folder: Path) -> None:
        """Writes the tokens; rank-bm25 has no file format."""
        words = sorted({token for tokens in self._documents for token in tokens})
        rank = {word: i for i, word in enumerate(words)}
        StringTable.of(words).save(folder, "vocabulary")
        np.save(folder / "tokens.npy", np.array([rank[t] for tokens in self._documents for t in tokens], np.int32))
        np.save(folder / "lengths.npy", np.array([len(tokens) for tokens in self._documents], np.int64))

    @classmethod
    def load(cls, folder: Path, num_documents: int, method: str, k1: float, b: float, delta: float) -> RankBm25Backend:
        """Raises IndexFormatError where a file is missing or damaged."""
        table = StringTable.load(folder, "vocabulary")
        words = [table[rank] for rank in range(len(table))]
        tokens = iter(load_array(folder / "tokens.npy", np.int32, 1).tolist())
        lengths = load_array(folder / "lengths.npy", np.int64, 1).tolist()
        if len(lengths) != num_documents:
            raise IndexFormatError(f"{folder}: it holds {len(lengths)} documents of {num_documents}; build it again.")
        try:
            documents = [[words[next(tokens)] for _ in range(n)] for n in lengths]
        except (IndexError, StopIteration) as error:
            raise IndexFormatError(f"{folder}: its tokens are damaged; delete the index and build again.") from error
        return cls.build(documents, method, k1, b, delta)
