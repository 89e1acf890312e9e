"""Where an index computes. It is no part of an index: one that was built on a GPU is served on CPUs as well.

Vectors that an embedder makes on a GPU differ from those of a CPU in their last digits; comparing them gives the same results
on both, since scores are always computed anew in float64 (see `vector`). Nothing here has been run on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Devices:
    """`models`: of embedder and re-ranker; `vectors`: of the comparison of vectors; each `cpu` or `cuda`."""

    models: str = "cpu"
    vectors: str = "cpu"


def use_threads(number: int) -> None:
    """Threads of this process that embed texts and compare vectors."""
    import faiss
    import torch

    torch.set_num_threads(number)
    faiss.omp_set_num_threads(number)


def devices_from_config(search: Mapping[str, Any]) -> Devices:
    """The devices in a configuration's `search` section."""
    return Devices(search["device"], search["vector"]["device"])
