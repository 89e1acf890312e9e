"""Building an index in a process of its own, so that no other one loads retrieval libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from rl_cluster.config import SearchConfig
from rl_cluster.models.source import cache_root
from rl_cluster.retrieval.devices import devices_from_config


@dataclass(frozen=True)
class BuiltIndex:
    """`index_id`: the content id; `warning`: what its user should know of it, in a sentence, or empty."""

    folder: str
    index_id: str
    num_documents: int
    warning: str = ""


def build_options(search: SearchConfig, parts: tuple[str, ...]) -> dict[str, Any]:
    """Ray's options of `build_index`: it takes no share of the CPUs, since nothing else computes while it runs."""
    return {"num_cpus": 0, "num_gpus": search.gpus_per_replica if search.needs_gpu and "vector" in parts else 0.0}


@ray.remote(max_calls=1)  # the process ends and gives its memory back
def build_index(
    path: str, corpus_name: str | None, search: dict[str, Any], locales: list[str], parts: tuple[str, ...]
) -> BuiltIndex:
    """Builds the index of one corpus of a file, or finds it, and cuts it into the shards that the configuration asks for.

    `corpus_name` None: the only one of the file. `locales` of the
    questions choose the analyser where the documents do not say their own. `parts`: those that the offered tools read; making
    vectors takes the longest.
    """
    import os

    import torch

    from rl_cluster.datasets.corpus import read_corpus
    from rl_cluster.retrieval.index import SearchIndex
    from rl_cluster.retrieval.recall import recall_warning
    from rl_cluster.retrieval.settings import settings_from_config
    from rl_cluster.retrieval.shards import cut

    # A task that reserves no CPU is given one thread by Ray; while an index is built, nothing else computes.
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores)
    corpus = read_corpus(path, corpus_name)
    settings = settings_from_config(search, corpus.locales or locales, parts)
    root = cache_root() / "indexes"
    index = SearchIndex.open_or_build(
        corpus, settings, root, memory_gib=search["memory_gib"], devices=devices_from_config(search), processes=cores
    )
    folder = str(root / index.index_id)
    cut(folder, search["shards"])
    return BuiltIndex(folder, index.index_id, len(corpus), recall_warning(index.manifest))


@ray.remote(max_calls=1, num_cpus=0)
def cut_index(folder: str, shards: int) -> None:
    """Cuts an index that was built before into as many shards, where it is not yet."""
    from rl_cluster.retrieval.shards import cut

    cut(folder, shards)
