"""The search index of one corpus: opened whole or in parts, and asked.

A folder holds `manifest.json`, the documents, `filters/`, `lexical/` and `vector/`; see `index_build` for how it is made.
Its content id is a digest of documents and settings: equal ids give equal answers, in whatever order questions come and
however many come at once. Documents lie in the order of their ids, so that ties by position are ties by id.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_cluster.datasets.task import Document
from rl_cluster.datasets.text import MAX_SNIPPET_CHARACTERS, MAX_TITLE_CHARACTERS, clean, limited
from rl_cluster.errors import IndexFormatError, SearchRequestError, UnknownDocumentError
from rl_cluster.models.embedder import Embedder
from rl_cluster.retrieval import index_build
from rl_cluster.retrieval.analysis import Analyzer
from rl_cluster.retrieval.conditions import check_conditions
from rl_cluster.retrieval.devices import Devices
from rl_cluster.retrieval.documents import DocumentStore
from rl_cluster.retrieval.exclusion import Exclusions
from rl_cluster.retrieval.filters import FilterIndex, Filters
from rl_cluster.retrieval.fusion import fuse, reordered
from rl_cluster.retrieval.hit import Hit
from rl_cluster.retrieval.index_build import content_id
from rl_cluster.retrieval.lexical import LexicalIndex
from rl_cluster.retrieval.manifest import check_parts, read_manifest
from rl_cluster.retrieval.passages import PART_WORDS, Words, passages
from rl_cluster.retrieval.query_vectors import QueryVectors
from rl_cluster.retrieval.rerank import CrossEncoderReranker, Reranker
from rl_cluster.retrieval.self_check import check_answers
from rl_cluster.retrieval.settings import PARTS, IndexSettings
from rl_cluster.retrieval.snippets import WordTokens, best_window, best_window_of_parts

if TYPE_CHECKING:
    from rl_cluster.datasets.corpus import Corpus

__all__ = ["MAX_K", "TOOLS", "DocumentPart", "IndexSettings", "Query", "SearchIndex", "content_id"]

TOOLS = (*PARTS, "hybrid")
MAX_K = 100
MAX_QUERY_CHARACTERS = 32_768


@dataclass(frozen=True)
class Query:
    """One of several queries; see `SearchIndex.search`."""

    text: str
    k: int
    excluded: Collection[str] = ()
    filters: Filters | None = None


@dataclass(frozen=True)
class DocumentPart:
    """One part of a document: `part` of `parts`, from 1, at characters `start` to `end` of its text."""

    doc_id: str
    title: str
    text: str
    part: int
    parts: int
    start: int
    end: int


class SearchIndex:
    """Answers searches over one corpus; may be shared between threads. Made by `build`, `open` or `open_or_build`."""

    def __init__(
        self,
        corpus: DocumentStore,
        settings: IndexSettings,
        manifest: dict[str, Any],
        filters: FilterIndex,
        lexical: LexicalIndex | None,
        vector: Any | None,
        embedder: Embedder | None,
        reranker: Reranker | None,
    ):
        self.corpus = corpus
        self.settings = settings
        self.manifest = manifest
        self._filters = filters
        self._exclusions = Exclusions(corpus)
        self._lexical = lexical
        self._vector = vector
        self._query_vectors = None if embedder is None else QueryVectors(embedder, settings.query_prompt)
        self._reranker = reranker
        self._analyzer = lexical.analyzer if lexical else Analyzer(settings.lexical.analysis)
        self._word_tokens = WordTokens(self._analyzer)

    @property
    def index_id(self) -> str:
        """The content id."""
        return self.manifest["content_id"]

    @property
    def filter_fields(self) -> list[str]:
        """The fields of metadata that a search can be limited by."""
        return self._filters.fields

    @property
    def tools(self) -> list[str]:
        """The search tools that this index was opened with."""
        loaded = [name for name, part in zip(PARTS, (self._lexical, self._vector), strict=True) if part is not None]
        return [*loaded, "hybrid"] if len(loaded) == len(PARTS) else loaded

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        settings: IndexSettings,
        folder: str | Path,
        *,
        embedder: Embedder | None = None,
        devices: Devices | None = None,
        processes: int = 1,
    ) -> SearchIndex:
        """Builds the index of `corpus` into `folder`, which must not exist or be empty, and opens it.

        `embedder` replaces the one that `settings` names (its vectors are not part of the content id). `processes` over 1 cut the
        texts of a large collection into words; they are started anew, so the script that asks for them must do its work below
        `if __name__ == "__main__":`. Raises IndexBuildError where the folder cannot be written; embeddings made so far are kept
        beside it for the next try.
        """
        index_build.build(corpus, settings, Path(folder), embedder, devices=devices, processes=processes)
        return cls.open(folder, embedder=embedder, devices=devices)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        parts: tuple[str, ...] | None = None,
        *,
        embedder: Embedder | None = None,
        reranker: Reranker | None = None,
        devices: Devices | None = None,
    ) -> SearchIndex:
        """Opens a folder, memory-mapped; `parts` limits what is loaded (default: all that was built).

        The embedder is loaded at the first vector search. Raises IndexFormatError where the folder is incomplete, was
        written by another format version, lacks a part that is asked for, or gives wrong answers to known questions;
        ModelError where its embedder is missing, and ConfigError where vectors are to be compared on a GPU that is not there.
        """
        folder, devices = Path(folder), devices or Devices()
        manifest, settings = read_manifest(folder)
        parts = settings.parts if parts is None else parts
        check_parts(folder, settings, parts)
        corpus = DocumentStore(folder, manifest["corpus"])
        filters = FilterIndex.load(folder / "filters")
        lexical = vector = None
        if "lexical" in parts:
            lexical = LexicalIndex.load(folder / "lexical")
        if "vector" in parts:
            # Imported here so that a process for word search alone never loads faiss.
            from rl_cluster.retrieval.vector import VectorIndex

            vector = VectorIndex.load(folder / "vector", settings.vector, devices.vectors)
            embedder = embedder or index_build.open_embedder(settings, devices, manifest["commits"].get("embedder"))
        for name, part in (("corpus", corpus), ("lexical part", lexical), ("vector part", vector)):
            if part is not None and len(part) != manifest["num_documents"]:
                raise IndexFormatError(
                    f"{folder}: the {name} has {len(part)} documents of {manifest['num_documents']}; delete it and build again."
                )
        check_answers(folder, manifest, lexical, vector)
        if settings.fusion.reranker and lexical and vector:
            reranker = reranker or CrossEncoderReranker(
                settings.fusion.reranker, device=devices.models, commit=manifest["commits"].get("reranker")
            )
        return cls(corpus, settings, manifest, filters, lexical, vector, embedder, reranker)

    @classmethod
    def open_or_build(
        cls,
        corpus: Corpus,
        settings: IndexSettings,
        cache_root: str | Path,
        *,
        parts: tuple[str, ...] | None = None,
        embedder: Embedder | None = None,
        memory_gib: float | None = None,
        devices: Devices | None = None,
        processes: int = 1,
    ) -> SearchIndex:
        """Opens the index of `corpus` under `cache_root`, building it first where it is missing or damaged; `processes` as in `build`.

        Raises ConfigError, before anything is built, where it does not fit into `memory_gib` (None: the machine's).
        """
        folder = Path(cache_root) / content_id(corpus, settings)
        if folder.exists():
            try:
                return cls.open(folder, parts, embedder=embedder, devices=devices)
            except IndexFormatError:
                index_build.discard(folder)
        try:
            index_build.build(corpus, settings, folder, embedder, memory_gib, devices, processes)
        except (OSError, IndexFormatError):
            # Another process may have finished the same folder first: then it is as good as ours.
            if not (folder / "manifest.json").is_file():
                raise
        return cls.open(folder, parts, embedder=embedder, devices=devices)

    def search(
        self, tool: str, query: str, k: int, excluded: Collection[str] = (), filters: Filters | None = None
    ) -> list[Hit]:
        """At most k hits, best first, ties by id; `excluded` ids are never among them.

        `tool`: `lexical`, `vector` or `hybrid`. Word search gives only documents that share a word with the query. `filters`:
        conditions on metadata, see `retrieval.filters`. Raises SearchRequestError for a query that is empty, too long or no
        text, k outside 1 to 100, a condition on an unknown field or of the wrong type, or a tool this index was not opened
        with.
        """
        return self._hits(query, self._found(tool, Query(query, k, excluded, filters)))

    def rank(
        self, tool: str, query: str, k: int, excluded: Collection[str] = (), filters: Filters | None = None
    ) -> list[tuple[str, float]]:
        """(id, score) of the hits of `search`, without the time that snippets take."""
        found = self._found(tool, Query(query, k, excluded, filters))
        return [(self.corpus.id_at(position), score) for position, score in found]

    def search_many(self, tool: str, queries: Sequence[Query]) -> list[list[Hit] | SearchRequestError]:
        """The answers of `search` to several queries, in their order; a wrong query is answered by its error.

        Each answer is what the query gets alone. Vectors are embedded in a batch and compared in one pass.
        """
        return [
            found if isinstance(found, SearchRequestError) else self._hits(query.text, found)
            for query, found in zip(queries, self._found_many(tool, queries), strict=True)
        ]

    def document(self, doc_id: str) -> Document:
        """Raises UnknownDocumentError where the corpus has no such document."""
        document = self.corpus.get(doc_id)
        if document is None:
            raise UnknownDocumentError(
                f"There is no document {doc_id!r} in the corpus {self.corpus.name!r}; use an id of a hit."
            )
        return document

    def read_document(self, doc_id: str, part: int = 1, excluded: Collection[str] = ()) -> DocumentPart:
        """One part of a document, about 200 words; hits name the part that their snippet is from.

        Raises SearchRequestError for an unknown or excluded id and for a part that the document does not have.
        """
        if doc_id in excluded:
            raise SearchRequestError(f"The document {doc_id!r} must not be shown for this task; use an id of a hit.")
        document = self.document(doc_id)
        position = self.corpus.position(doc_id)
        assert position is not None
        parts = self.corpus.kept_parts(position, document.text) or passages(document.text)
        if not isinstance(part, int) or isinstance(part, bool) or not 1 <= part <= len(parts):
            raise SearchRequestError(f"part is {part!r}; the document {doc_id!r} has the parts 1 to {len(parts)}.")
        found = parts[part - 1]
        text = document.text[found.start : found.end]
        return DocumentPart(doc_id, document.title, text, part, len(parts), found.start, found.end)

    def warm_up(self) -> None:
        """Loads what is loaded lazily (embedder, re-ranker), so that the first search is as quick as the others."""
        if self._query_vectors is not None:
            self._query_vectors.of(["warm up"])
        if self._reranker is not None:
            self._reranker.scores("warm up", ["warm up"])

    def _found(self, tool: str, query: Query) -> list[tuple[int, float]]:
        """(position, score) of the hits of `search`."""
        (found,) = self._found_many(tool, [query])
        if isinstance(found, SearchRequestError):
            raise found
        return found

    def _found_many(self, tool: str, queries: Sequence[Query]) -> list[list[tuple[int, float]] | SearchRequestError]:
        answers: list[list[tuple[int, float]] | SearchRequestError] = [[] for _ in queries]
        asked: list[int] = []
        masks: list[np.ndarray | None] = []
        for place, query in enumerate(queries):
            try:
                _check_request(query.text, query.k)
                if tool not in self.tools:
                    raise SearchRequestError(
                        f"There is no search tool {tool!r} here; choose one of: {', '.join(self.tools)}."
                    )
                masks.append(self._allowed(query.excluded, query.filters))
                asked.append(place)
            except SearchRequestError as error:
                answers[place] = error
        wanted = [queries[place] for place in asked]
        depth = self.settings.fusion.depth if tool == "hybrid" else 0
        rankings = [self._rankings(part, wanted, masks, depth) for part in PARTS if tool in (part, "hybrid")]
        for place, query, found in zip(asked, wanted, zip(*rankings, strict=True), strict=True):
            if tool == "hybrid":
                answers[place] = self._reranked(query.text, fuse(found[0], found[1], self.settings.fusion))[: query.k]
            else:
                answers[place] = found[0]
        return answers

    def _allowed(self, excluded: Collection[str], filters: Filters | None) -> np.ndarray | None:
        """bool `[documents]`, true for those that may be shown; None where all may."""
        if filters is not None:
            check_conditions(filters)
        allowed = self._filters.allowed(filters) if filters else None
        banned = self._exclusions.positions(excluded) if excluded else None
        if banned is not None and len(banned):
            allowed = np.ones(len(self.corpus), bool) if allowed is None else allowed
            allowed[banned] = False
        return allowed

    def _rankings(
        self, part: str, queries: Sequence[Query], masks: Sequence[np.ndarray | None], depth: int
    ) -> list[list[tuple[int, float]]]:
        """The ranking of each query by one part, at least `depth` deep."""
        ks = [max(query.k, depth) for query in queries]
        if part == "lexical":
            assert self._lexical is not None
            found = zip(queries, ks, masks, strict=True)
            return [self._lexical.search(query.text, k, allowed=mask) for query, k, mask in found]
        if not queries:
            return []
        assert self._vector is not None
        assert self._query_vectors is not None
        return self._vector.search_many(self._query_vectors.of([query.text for query in queries]), ks, masks)

    def _reranked(self, query: str, ranking: list[tuple[int, float]]) -> list[tuple[int, float]]:
        if self._reranker is None or not ranking:
            return ranking
        documents = [self.corpus.at(position) for position, _ in ranking[: self.settings.fusion.rerank_depth]]
        scores = self._reranker.scores(query, [f"{document.title}. {document.text}" for document in documents])
        return reordered(ranking, scores.tolist())

    def _hits(self, query: str, found: list[tuple[int, float]]) -> list[Hit]:
        tokens = self._analyzer.tokens(query)
        return [self._hit(position, score, tokens) for position, score in found]

    def _hit(self, position: int, score: float, tokens: list[str]) -> Hit:
        doc_id, title, text = self.corpus.shown(position)
        size = self.settings.snippet_words
        parts = self.corpus.kept_parts(position, text)
        if parts is None:
            words = Words(text)
            start, end = best_window(words, tokens, self._word_tokens, size)
            parts = passages(text) if len(words) > PART_WORDS else None
        else:
            start, end = best_window_of_parts(text, parts, tokens, self._word_tokens, size)
        middle = (start + end) // 2
        part = 1 if parts is None else next(p.number for p in parts if middle < p.end or p.end == len(text))
        title = limited(clean(title[: 4 * MAX_TITLE_CHARACTERS]), MAX_TITLE_CHARACTERS)
        return Hit(doc_id, title, limited(clean(text[start:end]), MAX_SNIPPET_CHARACTERS), score, part)


def _check_request(query: Any, k: Any) -> None:
    if not isinstance(query, str) or not query.strip():
        raise SearchRequestError("The query is empty; write at least one word.")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise SearchRequestError(f"The query has {len(query)} characters; give at most {MAX_QUERY_CHARACTERS}.")
    try:
        query.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SearchRequestError(
            f"The query has half a character (U+{ord(query[error.start]):04X}) at {error.start}; repair its encoding."
        ) from error
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:
        raise SearchRequestError(f"k is {k!r}; give a whole number from 1 to {MAX_K}.")
