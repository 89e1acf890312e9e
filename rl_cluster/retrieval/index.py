"""The search index of one corpus: built once, kept in a folder, opened whole or in parts.

A folder holds `manifest.json`, `corpus.parquet`, `lexical/` and `embeddings.npy`. It appears under its name only when
it is complete. Its content id is a digest of documents and settings: equal ids give equal results.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from rl_cluster.datasets.task import Document
from rl_cluster.errors import ConfigError, IndexFormatError, SearchRequestError
from rl_cluster.models.embedder import DEFAULT_EMBEDDER, Embedder, SentenceEmbedder, embedder_digest
from rl_cluster.retrieval.analysis import AnalysisSettings, Analyzer
from rl_cluster.retrieval.corpus import Corpus, read_corpus, write_corpus
from rl_cluster.retrieval.lexical import LexicalIndex, LexicalSettings
from rl_cluster.retrieval.snippets import DEFAULT_SNIPPET_WORDS, clean, snippet

FORMAT_VERSION = 1
TOOLS = ("lexical", "vector")
MAX_K = 100
_LIBRARIES = ("bm25s", "faiss-cpu", "faiss-gpu", "sentence-transformers", "numpy", "PyStemmer")
_ENCODE_ROWS = 2048


@dataclass(frozen=True)
class IndexSettings:
    """What an index is built with.

    `parts`: the tools it answers; `embedder`: see `rl_cluster.models.embedder`; `embed_max_tokens`: longer texts are cut
    before they are embedded; `snippet_words`: the most words of a snippet (it changes answers, hence the content id).
    """

    parts: tuple[str, ...] = TOOLS
    lexical: LexicalSettings = field(default_factory=LexicalSettings)
    embedder: str = DEFAULT_EMBEDDER
    embed_max_tokens: int = 128
    snippet_words: int = DEFAULT_SNIPPET_WORDS

    def __post_init__(self):
        unknown = [part for part in self.parts if part not in TOOLS]
        if unknown or not self.parts:
            raise ConfigError(f"search.parts is {list(self.parts)}; choose from: {', '.join(TOOLS)}.")
        for name in ("embed_max_tokens", "snippet_words"):
            if getattr(self, name) < 1:
                raise ConfigError(f"search.{name} is {getattr(self, name)}; give a number of at least 1.")


@dataclass(frozen=True)
class Hit:
    """One search result. `score` is comparable within one answer only."""

    doc_id: str
    title: str
    score: float
    snippet: str


def content_id(corpus: Corpus, settings: IndexSettings) -> str:
    """sha256 (hex, 32 digits) over the documents, the settings and the embedder's weights."""
    state: dict[str, Any] = {"format": FORMAT_VERSION, "corpus": corpus.digest(), "settings": asdict(settings)}
    if "vector" in settings.parts:
        state["embedder"] = embedder_digest(settings.embedder)
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]


class SearchIndex:
    """Answers searches over one corpus. Made by `build`, `open` or `open_or_build`."""

    def __init__(
        self,
        corpus: Corpus,
        settings: IndexSettings,
        manifest: dict[str, Any],
        lexical: LexicalIndex | None,
        vector: Any | None,
        embedder: Embedder | None,
    ):
        self.corpus = corpus
        self.settings = settings
        self.manifest = manifest
        self._lexical = lexical
        self._vector = vector
        self._embedder = embedder
        self._analyzer = Analyzer(settings.lexical.analysis)

    @property
    def index_id(self) -> str:
        """The content id."""
        return self.manifest["content_id"]

    @classmethod
    def build(
        cls, corpus: Corpus, settings: IndexSettings, folder: str | Path, *, embedder: Embedder | None = None
    ) -> SearchIndex:
        """Builds the index of `corpus` into `folder`, which must not exist or be empty, and opens it.

        `embedder` replaces the one that `settings` names (its vectors are not part of the content id).
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise IndexFormatError(f"{folder}: the folder is not empty; delete it or choose another one.")
        identity = content_id(corpus, settings)
        partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
        partial.mkdir(parents=True)
        try:
            _write(partial, corpus, settings, identity, embedder)
            if folder.exists():
                folder.rmdir()
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return cls.open(folder, embedder=embedder)

    @classmethod
    def open(
        cls, folder: str | Path, parts: tuple[str, ...] | None = None, *, embedder: Embedder | None = None
    ) -> SearchIndex:
        """Opens a folder; `parts` limits what is loaded (default: all that was built).

        The embedder is loaded at the first vector search. Raises IndexFormatError where the folder is incomplete, was
        written by another format version, or lacks a part that is asked for.
        """
        folder = Path(folder)
        manifest = _read_manifest(folder)
        settings = _settings_from(manifest["settings"], folder)
        parts = settings.parts if parts is None else parts
        for part in parts:
            if part not in settings.parts:
                raise IndexFormatError(f"{folder}: it has no part {part!r}; build it with search.parts including it.")
        corpus = read_corpus(folder / "corpus.parquet")
        if len(corpus) != manifest["num_documents"]:
            raise IndexFormatError(
                f"{folder}: it holds {len(corpus)} documents of {manifest['num_documents']}; delete it and build again."
            )
        lexical = vector = None
        if "lexical" in parts:
            lexical = LexicalIndex.load(folder / "lexical")
        if "vector" in parts:
            # Imported here so that a process for word search alone never loads faiss.
            from rl_cluster.retrieval.vector import VectorIndex

            vector = VectorIndex.load(folder / "embeddings.npy")
            embedder = embedder or SentenceEmbedder(settings.embedder, max_tokens=settings.embed_max_tokens)
        for name, part in (("lexical", lexical), ("vector", vector)):
            if part is not None and len(part) != len(corpus):
                raise IndexFormatError(
                    f"{folder}: the {name} part has {len(part)} documents of {len(corpus)}; delete it and build again."
                )
        return cls(corpus, settings, manifest, lexical, vector, embedder)

    @classmethod
    def open_or_build(
        cls,
        corpus: Corpus,
        settings: IndexSettings,
        cache_root: str | Path,
        *,
        parts: tuple[str, ...] | None = None,
        embedder: Embedder | None = None,
    ) -> SearchIndex:
        """Opens the index of `corpus` under `cache_root`, building it first where it is missing or damaged."""
        folder = Path(cache_root) / content_id(corpus, settings)
        if folder.exists():
            try:
                return cls.open(folder, parts, embedder=embedder)
            except IndexFormatError:
                _discard(folder)
        try:
            cls.build(corpus, settings, folder, embedder=embedder)
        except (OSError, IndexFormatError):
            # Another process may have finished the same folder first: then it is as good as ours.
            if not (folder / "manifest.json").is_file():
                raise
        return cls.open(folder, parts, embedder=embedder)

    def search(self, tool: str, query: str, k: int, excluded: Collection[str] = ()) -> list[Hit]:
        """At most k hits, best first, ties in the order of the corpus; `excluded` ids are never among them.

        Word search gives only documents that share a word with the query. Raises SearchRequestError for an empty query,
        k outside 1 to 100, or a tool this index was not opened with.
        """
        if not isinstance(query, str) or not query.strip():
            raise SearchRequestError("The query is empty; write at least one word.")
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:
            raise SearchRequestError(f"k is {k!r}; give a whole number from 1 to {MAX_K}.")
        banned = {p for p in (self.corpus.position(doc_id) for doc_id in excluded) if p is not None}
        if tool == "lexical" and self._lexical is not None:
            found = self._lexical.search(query, k, banned)
        elif tool == "vector" and self._vector is not None and self._embedder is not None:
            found = self._vector.search(self._embedder.encode([query])[0], k, banned)
        else:
            loaded = [name for name, part in (("lexical", self._lexical), ("vector", self._vector)) if part is not None]
            raise SearchRequestError(f"There is no search tool {tool!r} here; choose one of: {', '.join(loaded)}.")
        tokens = self._analyzer.tokens(query)
        return [self._hit(position, score, tokens) for position, score in found]

    def document(self, doc_id: str) -> Document:
        """Raises SearchRequestError where the corpus has no such document."""
        document = self.corpus.get(doc_id)
        if document is None:
            raise SearchRequestError(
                f"There is no document {doc_id!r} in the corpus {self.corpus.name!r}; use an id of a hit."
            )
        return document

    def warm_up(self) -> None:
        """Loads what is loaded lazily (the embedder), so that the first search is as quick as the others."""
        if self._embedder is not None:
            self._embedder.encode(["warm up"])

    def _hit(self, position: int, score: float, tokens: list[str]) -> Hit:
        document = self.corpus.at(position)
        text = snippet(document.text, tokens, self._analyzer, self.settings.snippet_words)
        return Hit(document.doc_id, clean(document.title), score, text)


def _write(folder: Path, corpus: Corpus, settings: IndexSettings, identity: str, embedder: Embedder | None) -> None:
    write_corpus(folder / "corpus.parquet", corpus.name, corpus)
    if "lexical" in settings.parts:
        texts = (f"{title}\n{text}" for title, text in corpus.texts())
        LexicalIndex.build(texts, settings.lexical).save(folder / "lexical")
    if "vector" in settings.parts:
        embedder = embedder or SentenceEmbedder(settings.embedder, max_tokens=settings.embed_max_tokens)
        blocks = []
        for start in range(0, len(corpus), _ENCODE_ROWS):
            blocks.append(embedder.encode([f"{t}. {x}" for t, x in corpus.texts(start, start + _ENCODE_ROWS)]))
        np.save(folder / "embeddings.npy", np.concatenate(blocks))
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }
    manifest = {
        "format": FORMAT_VERSION,
        "content_id": identity,
        "corpus": corpus.name,
        "num_documents": len(corpus),
        "settings": asdict(settings),
        "libraries": _library_versions(),
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")


def _library_versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IndexFormatError(f"{folder}: it is no complete index ({error}); delete it and build again.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT_VERSION:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise IndexFormatError(f"{folder}: its format is {found!r}, not {FORMAT_VERSION}; delete it and build again.")
    for name, size in manifest.get("files", {}).items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise IndexFormatError(f"{folder}: the file {name} is missing or cut; delete the folder and build again.")
    return manifest


def _settings_from(state: dict[str, Any], folder: Path) -> IndexSettings:
    try:
        lexical = dict(state["lexical"])
        lexical["analysis"] = AnalysisSettings(**lexical["analysis"])
        rest = {**state, "lexical": LexicalSettings(**lexical), "parts": tuple(state["parts"])}
        return IndexSettings(**rest)
    except (KeyError, TypeError, ValueError) as error:
        raise IndexFormatError(
            f"{folder}: its settings cannot be read ({error}); delete it and build again."
        ) from error


def _discard(folder: Path) -> None:
    # Renamed first: the name is free at once, and a crash while deleting leaves nothing that looks like an index.
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.discarded")
    with contextlib.suppress(FileNotFoundError):  # another process was quicker
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
