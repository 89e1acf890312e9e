"""Vector search: inner product over normalised embeddings, exact (flat) or approximate (HNSW, IVF-PQ), by faiss.

faiss adds in float32 in an order that depends on how many queries and rows it is given, so equal requests could differ in
their last digits and hence in their order. It only proposes candidates here; their scores are computed anew in float64,
row by row, which makes an answer the same alone and in a batch, on a CPU and on a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from rl_cluster.errors import ConfigError, IndexFormatError
from rl_cluster.retrieval.arrays import load_array
from rl_cluster.retrieval.ordering import top_positions
from rl_cluster.retrieval.vector_gpu import MOST_RESULTS, GpuCandidates
from rl_cluster.retrieval.vector_settings import VectorSettings

# Embeddings are memory-mapped, and only read.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

_EMBEDDINGS_FILE = "embeddings.npy"
_FAISS_FILE = "vectors.faiss"
_BLOCK_ROWS = 65_536
_TRAIN_ROWS = 262_144
_FEW_BANNED = 1000
_NEARBY = 200
"""Documents around a question over which it is seen how many a filter leaves."""
_PICKING = 4
"""How much longer it takes to pick a row out than to read it in its place."""
_LEAST_OF_A_LIST = 39
"""Rows that faiss wants for each list that it looks for."""
_MATRIX_QUERIES = 3
_MATRIX_ROWS = 16_384
# Where so few documents are allowed, comparing all of them is exact and no slower than a graph or lists.
_FEW_ALLOWED = 10_000


class VectorIndex:
    """A vector index; documents are named by their positions."""

    def __init__(
        self,
        embeddings: np.ndarray,
        settings: VectorSettings | None = None,
        approximate: Any = None,
        device: str = "cpu",
    ):
        """`embeddings`: float32 `[documents, dimensions]`, each row of length 1; `approximate`: a faiss index of them.

        Raises ConfigError where an approximate index is asked for that this collection cannot have, and where `device` is
        `cuda` and there is no GPU for it.
        """
        self.embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
        self.settings = settings or VectorSettings()
        if approximate is None and self.settings.kind != "flat":
            approximate = _approximate(self.embeddings, self.settings)
        self._approximate: Any = approximate
        self._gpu = GpuCandidates(self.embeddings, self.settings, approximate) if device == "cuda" else None
        # Twice the most by which float32 sums of products of unit vectors can be wrong.
        self._doubt = 2 * self.dimensions * 2.0**-24

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def dimensions(self) -> int:
        return self.embeddings.shape[1]

    def search(
        self, vector: np.ndarray, k: int, excluded: Collection[int] = (), allowed: np.ndarray | None = None
    ) -> list[tuple[int, float]]:
        """(position, similarity) of at most k documents, best first, ties by position.

        `vector`: float32 `[dimensions]`, of length 1; `excluded`: positions that are left out; `allowed`: bool
        `[documents]`, true for those that may be shown.
        """
        query = np.ascontiguousarray(vector, dtype=np.float32).reshape(-1)
        if excluded:
            allowed = np.ones(len(self), bool) if allowed is None else allowed.copy()
            allowed[np.fromiter(excluded, np.int64, len(excluded))] = False
        rows = None if allowed is None else np.flatnonzero(allowed)
        total = len(self) if rows is None else len(rows)
        if self._approximate is not None and total > _FEW_ALLOWED:
            share = 1.0 if allowed is None else self._share_nearby(query, allowed, total)
            # Where a walk would meet as many documents as there are, comparing all of them is exact.
            found = (
                self._propose(query, k, allowed, share) if share and total > self._walked(k, share) else _nothing()[1]
            )
            if len(found) >= max(k, 1):
                return self._scored(query, found, k)
        return self._scored(query, self._nearest(query, k, rows, total), k)

    def search_many(
        self, vectors: np.ndarray, ks: Sequence[int], allowed: Sequence[np.ndarray | None]
    ) -> list[list[tuple[int, float]]]:
        """The answers of `search` to several vectors, `[queries, dimensions]`, each with its own `k` and `allowed`.

        The rows are read once for all queries that search all of them.
        """
        together: list[int] = []
        if self._approximate is None:
            together = [i for i, mask in enumerate(allowed) if mask is None]
        answers: list[list[tuple[int, float]]] = [[] for _ in ks]
        if together:
            wanted = min(len(self), max(ks[i] for i in together) + 16)
            scores, positions = self._compared(vectors[together], wanted)
            for i, row_scores, row_positions in zip(together, scores, positions, strict=True):
                if wanted == len(self) or row_scores[-1] < row_scores[ks[i] - 1] - self._doubt:
                    answers[i] = self._scored(vectors[i], row_positions, ks[i])
                else:
                    answers[i] = self.search(vectors[i], ks[i])
        for i in set(range(len(ks))).difference(together):
            answers[i] = self.search(vectors[i], ks[i], allowed=allowed[i])
        return answers

    def _scored(self, query: np.ndarray, positions: np.ndarray, k: int) -> list[tuple[int, float]]:
        # Products of float32 numbers are exact in float64; each row is summed by itself.
        scores = (self.embeddings[positions].astype(np.float64) * query.astype(np.float64)).sum(axis=1)
        best = top_positions(scores, positions, k)
        by_position = dict(zip(positions.tolist(), scores.tolist(), strict=True))
        return [(int(i), by_position[int(i)]) for i in best]

    def _nearest(self, query: np.ndarray, k: int, rows: np.ndarray | None, total: int) -> np.ndarray:
        """Positions of all allowed documents that may be among the k best."""
        wanted = min(total, k + 16)
        while True:
            scores, positions = self._scan(query, wanted, rows)
            # What was not fetched scores at most scores[-1]; where that is within doubt of the k-th, fetch more.
            if wanted == total or scores[-1] < scores[k - 1] - self._doubt:
                return positions
            wanted = min(total, wanted * 4)

    def _scan(self, query: np.ndarray, wanted: int, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Scores (descending) and positions of the `wanted` nearest of `rows`, as float32 sees them."""
        queries = query[None]
        if rows is None:
            return _first(self._compared(queries, wanted))
        banned = len(self) - len(rows)
        if banned <= _FEW_BANNED:
            scores, positions = _first(self._compared(queries, wanted + banned))
            kept = np.isin(positions, rows, assume_unique=True)
            return scores[kept][:wanted], positions[kept][:wanted]
        found = []
        if len(rows) * _PICKING > len(self):
            for start in range(0, len(self), _BLOCK_ROWS):
                inside = rows[slice(*np.searchsorted(rows, (start, start + _BLOCK_ROWS)))]
                scores = (self.embeddings[start : start + _BLOCK_ROWS] @ query)[inside - start]
                best = np.argpartition(-scores, wanted)[:wanted] if len(scores) > wanted else slice(None)
                found.append((scores[best], inside[best]))
            rows = rows[:0]
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = rows[start : start + _BLOCK_ROWS]
            size = min(wanted, len(block))
            scores, inside = _first(faiss.knn(queries, self.embeddings[block], size, faiss.METRIC_INNER_PRODUCT))
            found.append((scores, block[inside]))
        scores, positions = (np.concatenate(part) for part in zip(*found, strict=True)) if found else _nothing()
        order = np.argsort(-scores, kind="stable")[:wanted]
        return scores[order], positions[order]

    def _compared(self, queries: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and positions, `[queries, wanted]` each, of the nearest of all rows, as float32 sees them."""
        if self._gpu is not None and self._approximate is None and wanted <= MOST_RESULTS:
            return self._gpu.nearest(queries, wanted)
        if len(queries) >= _MATRIX_QUERIES:
            return _multiplied(queries, self.embeddings, wanted)
        return faiss.knn(queries, self.embeddings, wanted, faiss.METRIC_INNER_PRODUCT)

    def _share_nearby(self, query: np.ndarray, allowed: np.ndarray, total: int) -> float:
        """The share of the nearest documents that are allowed, at most that of all: what a filter leaves out may lie where the
        question does, such as documents of its language."""
        found = self._approximate.search(query[None], _NEARBY, params=self._parameters(_NEARBY, 1.0, None))[1][0]
        nearby = allowed[found[found >= 0]]
        return min(total / len(self), float(nearby.mean()) if len(nearby) else 0.0)

    def _walked(self, k: int, share: float) -> int:
        """The documents that a walk over the graph compares at most; none for lists."""
        return (
            self.settings.breadth_of(len(self), k, share) * self.settings.links if self.settings.kind == "hnsw" else 0
        )

    def _propose(self, query: np.ndarray, k: int, allowed: np.ndarray | None, share: float) -> np.ndarray:
        """Positions that the approximate index holds for the nearest of the allowed ones, a `share` of those that it meets; fewer than
        k where it got lost."""
        settings = self.settings
        # A graph compares the rows themselves, so that only ties and last digits are left to be settled.
        wanted = min(len(self), k + 16 if settings.kind == "hnsw" else k * settings.refine)
        if self._gpu is not None and allowed is None and wanted <= MOST_RESULTS:
            positions = self._gpu.nearest(query[None], wanted)[1][0]
            return positions[positions >= 0]
        bits = None if allowed is None else np.packbits(allowed, bitorder="little")
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)  # pyright: ignore[reportCallIssue]
        parameters = self._parameters(k, share, selector)
        positions = self._approximate.search(query[None], wanted, params=parameters)[1][0]
        return positions[positions >= 0]

    def _parameters(self, k: int, share: float, selector: Any) -> Any:
        if self.settings.kind == "hnsw":
            breadth = self.settings.breadth_of(len(self), k, share)
            return faiss.SearchParametersHNSW(sel=selector, efSearch=breadth)  # pyright: ignore[reportAttributeAccessIssue]
        probes = self.settings.probes_of(self._approximate.nlist, share)
        return faiss.SearchParametersIVF(sel=selector, nprobe=probes)  # pyright: ignore[reportCallIssue]

    def save(self, folder: Path) -> None:
        """Writes the approximate index into `folder`, and the embeddings where they are not there yet."""
        if not (folder / _EMBEDDINGS_FILE).exists():
            np.save(folder / _EMBEDDINGS_FILE, self.embeddings)
        if self._approximate is not None:
            # Through Python's file, since faiss only prints what goes wrong while it closes one of its own.
            with (folder / _FAISS_FILE).open("wb") as stream:
                writer = faiss.PyCallbackIOWriter(stream.write)  # pyright: ignore[reportAttributeAccessIssue]
                faiss.write_index(self._approximate, writer)

    @classmethod
    def load(cls, folder: Path, settings: VectorSettings | None = None, device: str = "cpu") -> VectorIndex:
        """Opens a folder memory-mapped. Raises IndexFormatError where a file is missing or damaged, ConfigError as the class."""
        settings = settings or VectorSettings()
        embeddings = load_array(folder / _EMBEDDINGS_FILE, np.float32, 2)
        approximate = None
        if settings.kind != "flat":
            path = folder / _FAISS_FILE
            try:
                approximate = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
            except RuntimeError as error:
                raise IndexFormatError(
                    f"{path}: it cannot be read ({str(error).strip()}); delete the index and build again."
                ) from error
            if approximate.ntotal != len(embeddings):
                raise IndexFormatError(
                    f"{path}: it has {approximate.ntotal} rows of {len(embeddings)}; delete the index and build again."
                )
        return cls(embeddings, settings, approximate, device)


def _multiplied(queries: np.ndarray, rows: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """As `faiss.knn`, by products of all queries and a block of rows: two to three times as fast for 8 to 32 queries, since faiss
    spends most of its time on keeping the best of each query."""
    import torch

    asked, found = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32)), []
    for start in range(0, len(rows), _MATRIX_ROWS):
        block = torch.from_numpy(rows[start : start + _MATRIX_ROWS])
        scores, inside = (asked @ block.T).topk(min(wanted, len(block)), dim=1)
        found.append((scores, inside + start))
    scores, positions = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    scores, inside = scores.topk(wanted, dim=1)
    return scores.numpy(), positions.gather(1, inside).numpy()


def _first(found: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return found[0][0], found[1][0]


def _nothing() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(0, np.float32), np.zeros(0, np.int64)


def _approximate(embeddings: np.ndarray, settings: VectorSettings) -> Any:
    """A trained and filled faiss index. One thread: with more, neither the graph nor rounding would be reproducible."""
    size, dimensions = embeddings.shape
    if settings.kind == "hnsw":
        index = faiss.IndexHNSWFlat(dimensions, settings.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = settings.build_breadth
    else:
        lists = settings.lists or max(1, min(round(4 * size**0.5), size // _LEAST_OF_A_LIST))
        if dimensions % settings.code_bytes:
            raise ConfigError(
                f"search.vector.code_bytes is {settings.code_bytes}, which does not divide the {dimensions} dimensions of the "
                "embeddings; choose a divisor."
            )
        if size < max(256, lists):
            raise ConfigError(
                f"search.vector.kind=ivf_pq needs at least {max(256, lists)} documents, but there are {size}; use flat."
            )
        quantizer = faiss.IndexFlatIP(dimensions)
        index = faiss.IndexIVFPQ(quantizer, dimensions, lists, settings.code_bytes, 8, faiss.METRIC_INNER_PRODUCT)
    with _one_thread():
        if not index.is_trained:
            chosen = np.random.default_rng(0).permutation(size)[:_TRAIN_ROWS]
            index.train(embeddings[np.sort(chosen)])
        for start in range(0, size, _BLOCK_ROWS):
            index.add(np.ascontiguousarray(embeddings[start : start + _BLOCK_ROWS]))
    return index


@contextmanager
def _one_thread() -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
