"""Word search: BM25 over the tokens of title and text."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from rl_cluster.errors import ConfigError, IndexFormatError
from rl_cluster.retrieval.analysis import BUILD_CACHED_RUNS, AnalysisSettings, Analyzer
from rl_cluster.retrieval.lexical_bm25s import VARIANTS as BM25S_VARIANTS
from rl_cluster.retrieval.lexical_bm25s import Bm25sBackend
from rl_cluster.retrieval.lexical_rank_bm25 import VARIANTS as RANK_BM25_VARIANTS
from rl_cluster.retrieval.lexical_rank_bm25 import RankBm25Backend
from rl_cluster.retrieval.token_blocks import token_blocks

# Backend -> the variants it has.
VARIANTS = {"bm25s": BM25S_VARIANTS, "rank_bm25": RANK_BM25_VARIANTS}
_BACKENDS = {"bm25s": Bm25sBackend, "rank_bm25": RankBm25Backend}


@dataclass(frozen=True)
class LexicalSettings:
    """BM25 variant and its constants; `delta` is that of `bm25l` and `bm25+`. Raises ConfigError for values out of range."""

    method: str = "lucene"
    k1: float = 1.2
    b: float = 0.75
    delta: float = 1.0
    backend: str = "bm25s"
    analysis: AnalysisSettings = field(default_factory=AnalysisSettings)

    def __post_init__(self):
        if self.backend not in VARIANTS:
            raise ConfigError(f"search.lexical.backend is {self.backend!r}; choose one of: {', '.join(VARIANTS)}.")
        variants = VARIANTS[self.backend]
        if self.method not in variants:
            raise ConfigError(
                f"search.lexical.method is {self.method!r}; {self.backend} has the variants {', '.join(variants)}."
            )
        if not self.k1 > 0:
            raise ConfigError(f"search.lexical.k1 is {self.k1}; give a number above 0.")
        if not 0 <= self.b <= 1:
            raise ConfigError(f"search.lexical.b is {self.b}; give a number from 0 to 1.")
        if not self.delta >= 0:
            raise ConfigError(f"search.lexical.delta is {self.delta}; give a number of at least 0.")


class LexicalIndex:
    """A BM25 index; documents are named by their positions."""

    def __init__(self, backend: Bm25sBackend | RankBm25Backend, settings: LexicalSettings):
        self._backend = backend
        self._settings = settings
        self.analyzer = Analyzer(settings.analysis)

    def __len__(self) -> int:
        return len(self._backend)

    @classmethod
    def build(cls, texts: Iterable[str], settings: LexicalSettings | None = None, processes: int = 1) -> LexicalIndex:
        """Indexes one text per document, in the order of positions.

        `processes`: how many may cut the texts of a large collection into tokens, with bm25s; the index is the same whatever
        their number. Raises IndexBuildError where one of them is killed.
        """
        settings = settings or LexicalSettings()
        constants = _constants(settings)
        if settings.backend == "bm25s":
            return cls(Bm25sBackend.build(token_blocks(texts, settings.analysis, processes), *constants), settings)
        analyzer = Analyzer(settings.analysis, BUILD_CACHED_RUNS)
        return cls(RankBm25Backend.build(map(analyzer.tokens, texts), *constants), settings)

    def search(
        self, query: str, k: int, excluded: Collection[int] = (), allowed: np.ndarray | None = None
    ) -> list[tuple[int, float]]:
        """(position, score) of at most k documents that share a token with the query, best first, ties by position.

        `excluded`: positions that are left out; `allowed`: bool `[documents]`, true for those that may be shown.
        """
        if excluded:
            allowed = np.ones(len(self), bool) if allowed is None else allowed.copy()
            allowed[np.fromiter(excluded, np.int64, len(excluded))] = False
        return self._backend.search(self.analyzer.tokens(query), k, allowed)

    def cut(self, start: int, stop: int) -> LexicalIndex:
        """The documents at positions `start` to `stop` with the weights of the whole; `start` is position 0 there.

        Raises ConfigError for rank-bm25, which has no weights to keep.
        """
        if not isinstance(self._backend, Bm25sBackend):
            raise ConfigError(
                f"search.lexical.backend is {self._settings.backend!r}; use bm25s for search.shards over 1."
            )
        return LexicalIndex(self._backend.cut(start, stop), self._settings)

    def save(self, folder: Path) -> None:
        """Writes the index into `folder`, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        self._backend.save(folder)
        state = {"settings": asdict(self._settings), "num_documents": len(self)}
        (folder / "lexical.json").write_text(json.dumps(state, sort_keys=True), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> LexicalIndex:
        """Opens a folder memory-mapped. Raises IndexFormatError where a file is missing or cannot be read."""
        try:
            state = json.loads((folder / "lexical.json").read_text(encoding="utf-8"))
            settings = lexical_settings_from(state["settings"])
            names = ("method", "k1", "b", "delta")
            constants = dict(zip(names, _constants(settings), strict=True))
            backend = _BACKENDS[settings.backend].load(folder, state["num_documents"], **constants)
        except IndexFormatError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexFormatError(
                f"{folder}: the lexical index cannot be read ({error}); delete it and build again."
            ) from error
        return cls(backend, settings)


def lexical_settings_from(state: dict) -> LexicalSettings:
    """The settings that `dataclasses.asdict` wrote. Raises KeyError, TypeError or ConfigError for others."""
    return LexicalSettings(**{**state, "analysis": AnalysisSettings(**state["analysis"])})


def _constants(settings: LexicalSettings) -> tuple[str, float, float, float]:
    return settings.method, settings.k1, settings.b, settings.delta
