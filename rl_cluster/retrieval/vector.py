"""Vector search: exact inner product over normalised embeddings (faiss flat index)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import faiss
import numpy as np

from rl_cluster.errors import IndexFormatError
from rl_cluster.retrieval.ordering import top_positions


class VectorIndex:
    """An exact vector index; documents are named by their positions."""

    def __init__(self, embeddings: np.ndarray):
        """`embeddings`: float32 `[documents, dimensions]`, each row of length 1."""
        self.embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
        self._index = faiss.IndexFlatIP(self.embeddings.shape[1])
        self._index.add(self.embeddings)  # pyright: ignore[reportCallIssue]

    def __len__(self) -> int:
        return self._index.ntotal

    @property
    def dimensions(self) -> int:
        return self._index.d

    def search(self, vector: np.ndarray, k: int, excluded: Collection[int] = ()) -> list[tuple[int, float]]:
        """(position, similarity) of at most k documents, best first, ties by position.

        `vector`: float32 `[dimensions]`, of length 1.
        """
        query = np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1)
        banned = np.fromiter(set(excluded), np.int64, len(set(excluded)))
        wanted = min(len(self), k + len(banned) + 1)
        while True:
            scores, positions = (found[0] for found in self._index.search(query, wanted))  # pyright: ignore[reportCallIssue]
            keep = ~np.isin(positions, banned)
            best = top_positions(scores[keep], positions[keep], k)
            # A tie that may go on past what was fetched would be cut by faiss' own order: fetch more.
            complete = wanted == len(self) or (len(best) == k and scores[-1] < scores[positions == best[-1]][0])
            if complete:
                by_position = dict(zip(positions.tolist(), scores.tolist(), strict=True))
                return [(int(i), by_position[int(i)]) for i in best]
            wanted = min(len(self), wanted * 2)

    def save(self, path: Path) -> None:
        """Writes the embeddings as one `.npy` file."""
        np.save(path, self.embeddings)

    @classmethod
    def load(cls, path: Path) -> VectorIndex:
        """Raises IndexFormatError where the file is missing or is no matrix of numbers."""
        try:
            embeddings = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise IndexFormatError(
                f"{path}: the embeddings cannot be read ({error}); delete the index and build again."
            ) from error
        if embeddings.ndim != 2:
            raise IndexFormatError(
                f"{path}: the embeddings have shape {embeddings.shape}, not two axes; build the index again."
            )
        return cls(embeddings)
