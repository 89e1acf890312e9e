"""One ranking from several: by ranks, or by weighted scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_cluster.errors import ConfigError

METHODS = ("rrf", "weighted")
Ranking = list[tuple[int, float]]


@dataclass(frozen=True)
class FusionSettings:
    """How `hybrid_search` joins word search and vector search. Raises ConfigError for values out of range.

    `method`: `rrf` or `weighted`; `depth`: results taken from each; `rrf_k`: the constant of rank fusion;
    `lexical_weight`: the share of word search in a weighted score, from 0 to 1. `reranker`: a cross-encoder (folder or hub
    id) that orders the first `rerank_depth` results anew, or None.
    """

    method: str = "rrf"
    depth: int = 100
    rrf_k: float = 60.0
    lexical_weight: float = 0.5
    reranker: str | None = None
    rerank_depth: int = 20

    def __post_init__(self):
        if self.method not in METHODS:
            raise ConfigError(f"search.fusion.method is {self.method!r}; choose one of: {', '.join(METHODS)}.")
        for name, low in (("depth", 1), ("rrf_k", 0), ("rerank_depth", 1)):
            if getattr(self, name) < low:
                raise ConfigError(f"search.fusion.{name} is {getattr(self, name)}; give a number of at least {low}.")
        if not 0 <= self.lexical_weight <= 1:
            raise ConfigError(f"search.fusion.lexical_weight is {self.lexical_weight}; give a number from 0 to 1.")


def fuse(lexical: Ranking, vector: Ranking, settings: FusionSettings) -> Ranking:
    """The documents of both rankings, best first, ties by position.

    `rrf`: the sum of 1 / (rrf_k + rank), ranks from 1 (Cormack, Clarke and Büttcher, SIGIR 2009). `weighted`: the weighted sum
    of scores that are scaled to 0 to 1 within their ranking (CombSUM after min-max, Fox and Shaw, TREC-2).
    """
    if settings.method == "rrf":
        parts = [_reciprocal_ranks(ranking, settings.rrf_k) for ranking in (lexical, vector)]
    else:
        weights = (settings.lexical_weight, 1 - settings.lexical_weight)
        parts = [_scaled(ranking, weight) for ranking, weight in zip((lexical, vector), weights, strict=True)]
    total: dict[int, float] = {}
    for part in parts:
        for position, score in part.items():
            total[position] = total.get(position, 0.0) + score
    return sorted(total.items(), key=lambda found: (-found[1], found[0]))


def _reciprocal_ranks(ranking: Ranking, constant: float) -> dict[int, float]:
    return {position: 1 / (constant + rank) for rank, (position, _) in enumerate(ranking, start=1)}


def _scaled(ranking: Ranking, weight: float) -> dict[int, float]:
    if not ranking:
        return {}
    low, high = ranking[-1][1], ranking[0][1]
    # A ranking of equal scores tells nothing about their order, but each of its documents was found.
    return {i: weight * ((score - low) / (high - low) if high > low else 1.0) for i, score in ranking}


def reordered(ranking: Ranking, scores: Sequence[float]) -> Ranking:
    """The first `len(scores)` results by these scores (ties by position), then the others as they were.

    The scores of others fall below those of the first, so that scores stay descending.
    """
    first = sorted(
        ((position, float(score)) for (position, _), score in zip(ranking, scores, strict=False)),
        key=lambda found: (-found[1], found[0]),
    )
    lowest = first[-1][1] if first else 0.0
    others = ranking[len(scores) :]
    return first + [(position, lowest - rank) for rank, (position, _) in enumerate(others, start=1)]
