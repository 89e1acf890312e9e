"""Which vector index is built; apart from `vector`, so that a process for word search alone never loads faiss."""

from __future__ import annotations

from dataclasses import dataclass

from rl_cluster.errors import ConfigError

KINDS = ("flat", "hnsw", "ivf_pq")


@dataclass(frozen=True)
class VectorSettings:
    """Raises ConfigError for values out of range.

    `kind`: `flat` compares all documents; `hnsw` walks a graph of `links` neighbours each, built with `build_breadth` and
    searched with `search_breadth` candidates (Malkov and Yashunin, 2016); `ivf_pq` looks through `probes` of `lists` cells
    (0: four times the square root of the collection) over codes of `code_bytes` bytes (Jégou et al., 2011). The approximate
    ones take `refine` candidates for each result and compare these exactly.
    """

    kind: str = "flat"
    links: int = 32
    build_breadth: int = 200
    search_breadth: int = 128
    lists: int = 0
    probes: int = 32
    code_bytes: int = 48
    refine: int = 10

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ConfigError(f"search.vector.kind is {self.kind!r}; choose one of: {', '.join(KINDS)}.")
        lowest = {
            "links": 2,
            "build_breadth": 1,
            "search_breadth": 1,
            "lists": 0,
            "probes": 1,
            "code_bytes": 1,
            "refine": 1,
        }
        for name, low in lowest.items():
            if getattr(self, name) < low:
                raise ConfigError(f"search.vector.{name} is {getattr(self, name)}; give a number of at least {low}.")
