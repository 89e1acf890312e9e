"""Building an index in a process of its own, so that no other one loads retrieval libraries."""

from __future__ import annotations

from typing import Any

import ray

from rl_cluster.models.source import cache_root


@ray.remote(max_calls=1)  # the process ends and gives its memory back
def build_index(corpus_path: str, search: dict[str, Any], locales: list[str]) -> tuple[str, str, int]:
    """Builds the index of a corpus file, or finds it; its folder, its content id and its number of documents."""
    import os

    import torch

    from rl_cluster.retrieval.corpus import read_corpus
    from rl_cluster.retrieval.index import SearchIndex
    from rl_cluster.retrieval.settings import settings_from_config

    # A task that reserves no CPU is given one thread by Ray; while an index is built, nothing else computes.
    torch.set_num_threads(os.cpu_count() or 1)
    settings = settings_from_config(search, locales)
    corpus = read_corpus(corpus_path)
    root = cache_root() / "indexes"
    identity = SearchIndex.open_or_build(corpus, settings, root, memory_gib=search["memory_gib"]).index_id
    return str(root / identity), identity, len(corpus)
