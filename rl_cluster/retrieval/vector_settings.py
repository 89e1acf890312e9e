"""Which vector index is built; apart from `vector`, so that a process for word search alone never loads faiss."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rl_cluster.errors import ConfigError

KINDS = ("flat", "hnsw", "ivf_pq")
_LEAST_BREADTH = 128
_BREADTH_PER_RESULT = 10
_LEAST_PROBES = 128


@dataclass(frozen=True)
class VectorSettings:
    """Raises ConfigError for values out of range.

    `kind`: `flat` compares all documents; `hnsw` walks a graph of `links` neighbours each, built with `build_breadth` and
    searched with `search_breadth` candidates (Malkov and Yashunin, 2016; 0: twice the square root of the collection, at least 128);
    `ivf_pq` looks through `probes` (0: a tenth, at least 128) of `lists` cells (0: four times the square root of the collection, of 39 documents each at least) over
    codes of `code_bytes` bytes (Jégou et al., 2011), takes `refine` candidates for each result and compares these exactly. Where
    filters leave a share of the documents, breadth and probes grow by as much as that is small.
    """

    kind: str = "flat"
    links: int = 32
    build_breadth: int = 200
    search_breadth: int = 0
    lists: int = 0
    probes: int = 0
    code_bytes: int = 48
    refine: int = 50

    def breadth_of(self, documents: int, k: int, share: float = 1.0) -> int:
        """Candidates of a walk over a graph of so many documents, of which a `share` is allowed, for k results.

        Near-duplicates hide each other's neighbours the more a collection has: with 20 of each text a breadth of 128 finds 0.86 of
        the ten nearest among 100,000, and 600 finds 0.97.
        """
        breadth = self.search_breadth or max(_LEAST_BREADTH, round(2 * documents**0.5))
        return min(documents, ceil(max(breadth, _BREADTH_PER_RESULT * k) / share))

    def probes_of(self, lists: int, share: float = 1.0) -> int:
        """How many of an index's `lists` are looked through where a `share` of the documents is allowed.

        A fixed number would find less the larger a collection is: of points with 24 degrees of freedom in clusters that overlap, 32
        probes find 0.94 of the ten nearest among 20,000 and 0.79 among 500,000, a tenth of the lists 0.98 and 0.99.
        """
        probes = self.probes or max(_LEAST_PROBES, ceil(lists / 10))
        return min(lists, ceil(probes / share))

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ConfigError(f"search.vector.kind is {self.kind!r}; choose one of: {', '.join(KINDS)}.")
        lowest = {
            "links": 2,
            "build_breadth": 1,
            "search_breadth": 0,
            "lists": 0,
            "probes": 0,
            "code_bytes": 1,
            "refine": 1,
        }
        for name, low in lowest.items():
            if getattr(self, name) < low:
                raise ConfigError(f"search.vector.{name} is {getattr(self, name)}; give a number of at least {low}.")
