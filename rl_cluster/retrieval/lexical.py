"""Word search: BM25 over the tokens of title and text.

bm25s computes the scores. It returns documents that score 0, fails where k exceeds the collection and leaves ties to
chance, so the choice of the k best is made here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import bm25s
import numpy as np

from rl_cluster.errors import ConfigError, IndexFormatError
from rl_cluster.retrieval.analysis import AnalysisSettings, Analyzer
from rl_cluster.retrieval.ordering import top_positions

# The other methods of bm25s give a positive score to documents that hold no word of the query.
METHODS = ("lucene", "robertson", "atire")


@dataclass(frozen=True)
class LexicalSettings:
    """BM25 variant and its constants. Raises ConfigError for values out of range."""

    method: str = "lucene"
    k1: float = 1.2
    b: float = 0.75
    analysis: AnalysisSettings = field(default_factory=AnalysisSettings)

    def __post_init__(self):
        if self.method not in METHODS:
            raise ConfigError(f"search.method is {self.method!r}; choose one of: {', '.join(METHODS)}.")
        if not self.k1 > 0:
            raise ConfigError(f"search.k1 is {self.k1}; give a number above 0.")
        if not 0 <= self.b <= 1:
            raise ConfigError(f"search.b is {self.b}; give a number from 0 to 1.")


class LexicalIndex:
    """A BM25 index; documents are named by their positions."""

    def __init__(self, engine: bm25s.BM25, settings: LexicalSettings, num_documents: int):
        self._engine = engine
        self._settings = settings
        self._analyzer = Analyzer(settings.analysis)
        self._num_documents = num_documents

    def __len__(self) -> int:
        return self._num_documents

    @classmethod
    def build(cls, texts: Iterable[str], settings: LexicalSettings | None = None) -> LexicalIndex:
        """Indexes one text per document, in the order of positions."""
        settings = settings or LexicalSettings()
        analyzer = Analyzer(settings.analysis)
        vocabulary: dict[str, int] = {}
        documents = [
            # One compact array per document: lists of Python ints would take ten times the memory.
            np.fromiter((vocabulary.setdefault(token, len(vocabulary)) for token in analyzer.tokens(text)), np.int32)
            for text in texts
        ]
        if not vocabulary:
            # A collection without any word is legal: nothing is ever found in it, as no query has the empty token.
            vocabulary[""] = 0
            documents = [np.zeros(1, np.int32) for _ in documents]
        engine = bm25s.BM25(method=settings.method, k1=settings.k1, b=settings.b)
        engine.index((documents, vocabulary), create_empty_token=False, show_progress=False)
        return cls(engine, settings, len(documents))

    def search(self, query: str, k: int, excluded: Collection[int] = ()) -> list[tuple[int, float]]:
        """(position, score) of at most k documents with a score above 0, best first, ties by position."""
        tokens = self._engine.get_tokens_ids(self._analyzer.tokens(query))
        if not tokens:
            return []
        scores = np.asarray(self._engine.get_scores_from_ids(tokens))
        keep = scores > 0
        if excluded:
            keep[np.fromiter(excluded, np.int64)] = False
        candidates = np.flatnonzero(keep)
        return [(int(i), float(scores[i])) for i in top_positions(scores[candidates], candidates, k)]

    def save(self, folder: Path) -> None:
        """Writes the index into `folder`, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        self._engine.save(str(folder), show_progress=False)
        state = {"settings": asdict(self._settings), "num_documents": self._num_documents}
        (folder / "lexical.json").write_text(json.dumps(state, sort_keys=True), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> LexicalIndex:
        """Raises IndexFormatError where a file is missing or cannot be read."""
        try:
            state = json.loads((folder / "lexical.json").read_text(encoding="utf-8"))
            engine = bm25s.BM25.load(str(folder), mmap=False, load_corpus=False)
            analysis = AnalysisSettings(**state["settings"].pop("analysis"))
            settings = LexicalSettings(**state["settings"], analysis=analysis)
            return cls(engine, settings, state["num_documents"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexFormatError(
                f"{folder}: the lexical index cannot be read ({error}); delete it and build again."
            ) from error
