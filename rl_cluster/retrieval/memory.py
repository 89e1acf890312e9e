"""What an index takes of a machine's memory, so that one that cannot fit is refused before anything is built or opened.

Files are mapped, hence a part that does not fit would still open, and then wait for the disk at every search. `memory_gib` is
what one machine gives to its indexes, whichever of its processes map them: it bounds what is built there and what a replica
there opens, which is a shard of each index where those are cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_cluster.errors import ConfigError
from rl_cluster.retrieval.settings import IndexSettings
from rl_cluster.retrieval.vector_settings import VectorSettings

_GIB = 1 << 30
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
# Counting terms takes about five times the text: blocks of terms, the matrix, and both while one becomes the other.
_BUILD_BYTES_PER_TEXT_BYTE = 5
_MOST_DIMENSIONS = 8192


def machine_gib() -> float:
    """The memory of this machine, or of its container, GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        limit = "max"
    return min(total, int(limit) if limit.isdecimal() else total) / _GIB


def open_bytes(manifest: Mapping[str, Any], settings: IndexSettings, parts: tuple[str, ...]) -> int:
    """What the `parts` of a built index take once they are warm; texts are read when they are shown and take nothing."""
    total = 0
    for name, size in manifest["files"].items():
        part = name.partition("/")[0]
        if part in ("lexical", "vector") and part not in parts:
            continue
        if name == "documents.bin" or (name == "vector/embeddings.npy" and settings.vector.kind == "ivf_pq"):
            continue
        total += size
    return total


def vector_bytes(documents: int, dimensions: int, vector: VectorSettings) -> int:
    """What a vector index takes: all rows, for a graph those again and their links, for codes the codes alone."""
    rows = 4 * documents * dimensions
    if vector.kind == "hnsw":
        return 2 * rows + 4 * documents * (2 * vector.links + 2)
    return documents * (vector.code_bytes + 8) if vector.kind == "ivf_pq" else rows


def check_build(
    documents: int, text_bytes: int, settings: IndexSettings, dimensions: Callable[[], int], memory_gib: float | None
) -> None:
    """Raises ConfigError where an index cannot be built in `memory_gib` (None: what the machine has).

    One machine builds the whole, also where it is cut into shards afterwards.
    `dimensions` of the embedder is asked only where it could matter, since it loads a model.
    """
    budget = machine_gib() if memory_gib is None else memory_gib
    lexical = _BUILD_BYTES_PER_TEXT_BYTE * text_bytes if "lexical" in settings.parts else text_bytes
    vector, smaller = 0, ""
    if (
        "vector" in settings.parts
        and lexical + vector_bytes(documents, _MOST_DIMENSIONS, settings.vector) > budget * _GIB
    ):
        size = dimensions()
        vector = vector_bytes(documents, size, settings.vector)
        codes = vector_bytes(documents, size, VectorSettings("ivf_pq", code_bytes=settings.vector.code_bytes))
        if codes < vector:
            smaller = f"set search/vector=ivf_pq, whose vectors take {codes / _GIB:.3g} GiB, or "
    needed = max(lexical, vector)
    if needed > budget * _GIB:
        raise ConfigError(
            f"The index of {documents} documents needs about {needed / _GIB:.3g} GiB of memory on the machine that builds it whole, but "
            f"{_given(memory_gib, budget)}; "
            f"{smaller}use a larger machine."
        )


def check_open(
    folder: str | Path, needed_bytes: int, memory_gib: float | None, opened: str = "the indexes of a replica"
) -> None:
    """Raises ConfigError where what is `opened` on a machine takes `needed_bytes`, which do not fit; `folder`: its latest index."""
    budget = machine_gib() if memory_gib is None else memory_gib
    if needed_bytes > budget * _GIB:
        raise ConfigError(
            f"{folder}: with it {opened} take {needed_bytes / _GIB:.3g} GiB of a machine's memory, but "
            f"{_given(memory_gib, budget)}; build it with search/vector=ivf_pq, or use a larger machine."
        )


def _given(memory_gib: float | None, budget: float) -> str:
    return f"the machine has {budget:.3g}" if memory_gib is None else f"search.memory_gib={memory_gib:g}"
