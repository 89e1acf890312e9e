"""Small indexes of two snapshots of a collection, and a backend over them without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.task import Document
from rl_cluster.errors import RLClusterError, ToolUnavailableError
from rl_cluster.retrieval.index import IndexSettings, SearchIndex
from rl_cluster.service.catalog import IndexCatalog
from rl_cluster.service.values import (
    DocumentAnswer,
    DocumentRequest,
    IndexDescription,
    Request,
    SearchAnswer,
    SearchRequest,
)

TOPICS = ("pump", "valve", "boiler", "greenhouse", "audit")
HOSTILE = "evil\x00\x1b[31m\u202e title " + "x" * 2000


def documents(snapshot: int, number: int = 60) -> list[Document]:
    """The same ids in each snapshot; its number stands in every text."""
    found = [
        Document(
            f"d{i:03d}",
            f"{TOPICS[i % 5]} {i}",
            f"Snapshot {snapshot} says how the {TOPICS[i % 5]} of line {i} is kept, step by step.",
            {"year": 2000 + i % 20, "kind": "wiki" if i % 2 else "mail"},
        )
        for i in range(number)
    ]
    return [*found, Document("hostile", HOSTILE, "control\x07 \x00chars\nsecond line\u200b " + "word " * 500)]


def build_index(folder: Path, snapshot: int = 1, parts: tuple[str, ...] = ("lexical",), number: int = 60) -> str:
    """Builds an index and returns its folder."""
    corpus = Corpus.from_documents("kb", documents(snapshot, number))
    SearchIndex.build(corpus, IndexSettings(parts=parts), folder)
    return str(folder)


class DirectBackend:
    """Answers from a catalog in this process; see service.http_app.Backend."""

    def __init__(self, catalog: IndexCatalog) -> None:
        self.catalog = catalog
        self.folders: dict[str, str] = {}
        self.failure: RLClusterError | None = None
        self.dead: tuple[str, ...] = ()

    async def _ask(self, request: Request) -> SearchAnswer | DocumentAnswer:
        if self.failure is not None:
            raise self.failure
        (reply,) = await asyncio.to_thread(self.catalog.answer, [request])
        if isinstance(reply, RLClusterError):
            raise reply
        return reply

    async def search_index(self, request: SearchRequest) -> SearchAnswer:
        answer = await self._ask(request)
        assert isinstance(answer, SearchAnswer)
        return answer

    async def read_index(self, request: DocumentRequest) -> DocumentAnswer:
        answer = await self._ask(request)
        assert isinstance(answer, DocumentAnswer)
        return answer

    async def indexes(self) -> list[IndexDescription]:
        return self.catalog.describe()

    async def check(self, tools: Sequence[str]) -> None:
        for tool in tools:
            if tool in self.dead:
                raise ToolUnavailableError(f"{tool} is not available.")

    async def swap(self, name: str, folder: str) -> IndexDescription:
        self.folders[name] = folder
        self.catalog.apply(self.folders)
        return next(found for found in self.catalog.describe() if found.name == name)


class HashEmbedder:
    """Vectors by the words of a text, the same in every process; it counts its calls."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def encode(self, texts) -> np.ndarray:
        self.batches.append(len(texts))
        rows = np.zeros((len(texts), 32), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().split():
                row[sum(word.encode()) % 32] += 1.0
            row[0] += 0.1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
