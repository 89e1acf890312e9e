"""Proposing candidates on a GPU with faiss; it has not been run on one.

Scores are computed anew from the rows in memory, so that what is found is what a CPU finds. Filtered searches of lists of
codes stay on the CPU: faiss has no selector for them on a GPU.
"""

from __future__ import annotations

import threading
from typing import Any

import faiss
import numpy as np

from rl_cluster.errors import ConfigError
from rl_cluster.retrieval.vector_settings import VectorSettings

MOST_RESULTS = 2048
"""What faiss gives to a query on a GPU."""
MOST_PROBES = 2048
"""Lists that faiss looks through on a GPU."""
_BLOCK_ROWS = 65_536


def check_gpu(settings: VectorSettings) -> None:
    """Raises ConfigError where the installed faiss, this process or the kind of index has no GPU."""
    wrong = "search.vector.device=cuda: "
    if settings.kind == "hnsw":
        raise ConfigError(f"{wrong}kind=hnsw has no form for GPUs; set search/vector=flat or ivf_pq.")
    if not hasattr(faiss, "StandardGpuResources"):
        raise ConfigError(
            f"{wrong}the installed faiss {faiss.__version__} has no GPU support; install faiss-gpu in place of faiss-cpu, or set "
            "search.vector.device=cpu."
        )
    if not faiss.get_num_gpus():
        raise ConfigError(f"{wrong}faiss finds no GPU in this process; give replicas one with search.gpus_per_replica.")


class GpuCandidates:
    """All rows of an index on the first GPU of this process, or its lists of codes; may be shared between threads."""

    def __init__(self, embeddings: np.ndarray, settings: VectorSettings, approximate: Any | None):
        """`embeddings`: float32 `[documents, dimensions]`; `approximate`: the faiss index of `ivf_pq`. Raises as `check_gpu`."""
        check_gpu(settings)
        self._resources: Any = faiss.StandardGpuResources()  # pyright: ignore[reportAttributeAccessIssue]
        self._parameters: Any = None
        # Its scratch memory is one for all searches.
        self._lock = threading.Lock()
        if approximate is not None:
            self._index: Any = faiss.index_cpu_to_gpu(self._resources, 0, approximate)  # pyright: ignore[reportAttributeAccessIssue]
            probes = min(settings.probes_of(approximate.nlist), MOST_PROBES)
            self._parameters = faiss.SearchParametersIVF(nprobe=probes)  # pyright: ignore[reportCallIssue]
            return
        self._index = faiss.GpuIndexFlatIP(self._resources, embeddings.shape[1])  # pyright: ignore[reportAttributeAccessIssue]
        for start in range(0, len(embeddings), _BLOCK_ROWS):
            self._index.add(np.ascontiguousarray(embeddings[start : start + _BLOCK_ROWS]))

    def nearest(self, queries: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores (descending) and positions, `[queries, wanted]` each; `wanted` is at most `MOST_RESULTS`."""
        with self._lock:
            return self._index.search(np.ascontiguousarray(queries), wanted, params=self._parameters)
