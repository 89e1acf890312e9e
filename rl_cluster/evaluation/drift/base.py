"""What a drift may change, all of which stays as it is unless a drift says otherwise."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rl_cluster.config import Section
from rl_cluster.datasets.task import Document, Task
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.environments.search_tools import ReadPart
from rl_cluster.episodes.formats.base import ParsedReply, ToolFormat, ToolSpec

INJECTED = "(injected)"
"""Ends the text of a failure, so that nobody who reads an episode takes it for one of the service."""
_NOTED: ContextVar[list[str]] = ContextVar("noted")
"""What drifts did to the searches of the block around it. Many episodes share one client, each in a task of its own."""


class NoSettings(Section):
    """Of drifts that have none."""


class EvaluationSearch(Protocol):
    """A search client that can leave out snippets, which cost more than the search where a hundred hits are wanted.

    Raises as `environments.search_tools.SearchClient` does, and is one. `timeout_s`: after which it gives a search up; None: never.
    """

    timeout_s: float | None

    async def search(
        self,
        tool: str,
        query: str,
        k: int,
        excluded: tuple[str, ...],
        filters: Mapping[str, Any] | None = None,
        snippets: bool = True,
    ) -> list[FoundDocument]: ...

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart: ...


@dataclass(frozen=True)
class Asked:
    """The arguments of one search."""

    tool: str
    query: str
    k: int
    excluded: tuple[str, ...]
    filters: Mapping[str, Any] | None
    snippets: bool


@contextmanager
def noted_injections() -> Iterator[list[str]]:
    """The kinds of what drifts put in the way of the searches inside this block, as they happen."""
    noted: list[str] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def note_injection(kind: str) -> None:
    """Tells the block of `noted_injections` around the search, if there is one."""
    noted = _NOTED.get(None)
    if noted is not None:
        noted.append(kind)


class ChangedSearch:
    """A client in front of another one; what a drift leaves as it is goes through. A drift of searches overrides `answer`."""

    def __init__(self, inner: EvaluationSearch) -> None:
        self.inner = inner
        self.timeout_s = inner.timeout_s

    async def search(
        self,
        tool: str,
        query: str,
        k: int,
        excluded: tuple[str, ...],
        filters: Mapping[str, Any] | None = None,
        snippets: bool = True,
    ) -> list[FoundDocument]:
        return await self.answer(Asked(tool, query, k, excluded, filters, snippets))

    async def answer(self, asked: Asked) -> list[FoundDocument]:
        """What the agent is given."""
        return await self.unchanged(asked)

    async def unchanged(self, asked: Asked) -> list[FoundDocument]:
        """What it would be given without the drift."""
        return await self.inner.search(asked.tool, asked.query, asked.k, asked.excluded, asked.filters, asked.snippets)

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart:
        return await self.inner.read(doc_id, part, excluded)


class _Filtered(ChangedSearch):
    def __init__(self, inner: EvaluationSearch, filters: Mapping[str, Any]) -> None:
        super().__init__(inner)
        self.filters = filters

    async def answer(self, asked: Asked) -> list[FoundDocument]:
        return await self.unchanged(replace(asked, filters={**(asked.filters or {}), **self.filters}))


def filtered(inner: EvaluationSearch, filters: Mapping[str, Any] | None) -> EvaluationSearch:
    """A client that adds conditions on metadata to every search."""
    return _Filtered(inner, filters) if filters else inner


class SometimesChanged(ChangedSearch):
    """Changes a share `rate` of the searches of one `episode`; which ones, `seed`, `kind`, `episode` and their number in it decide.

    So every system meets the same ones, whoever asked before, and a query may be let through the next time.
    """

    def __init__(self, inner: EvaluationSearch, kind: str, rate: float, seed: int, episode: str) -> None:
        super().__init__(inner)
        self.kind = kind
        self.rate = rate
        self.seed = seed
        self.episode = episode
        self.searches = 0

    async def answer(self, asked: Asked) -> list[FoundDocument]:
        self.searches += 1
        chance = random_of(self.seed, self.kind, self.episode, self.searches)
        return await (self.changed(asked) if chance.random() < self.rate else self.unchanged(asked))

    async def changed(self, asked: Asked) -> list[FoundDocument]:
        """What the agent is given, or meets where it is raised; calls `note_injection`."""
        raise NotImplementedError


class Drift:
    """Every change is decided by `seed` and what it applies to alone."""

    filters: Mapping[str, Any] | None = None
    """Conditions on metadata that the search service now adds to every search."""

    needs_documents = False
    """Whether it changes the documents or draws from all of them, so that they must be at hand."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    @property
    def description(self) -> str:
        """One line for the report."""
        return "nothing is changed"

    def applies_to(self, tool_format: ToolFormat | None) -> bool:
        """Whether a system can meet the change at all; `tool_format` is None for one that reads no tools and writes no calls."""
        return True

    def problem(self, doc_ids: Sequence[str], gold: Container[str]) -> str:
        """Why the drift cannot be made of these documents, as a part of a sentence; empty where it can. `gold` as `documents`."""
        return ""

    def documents(
        self, documents: Sequence[Document], taken: Container[str], gold: Container[str], seed: int
    ) -> Sequence[Document]:
        """The collection that is searched, made of documents without a `problem`.

        `taken` holds the ids of its documents and of those that questions name, `gold` of those that some question has a gain for.
        """
        return documents

    def tasks(self, tasks: Sequence[Task], taken: Container[str], seed: int) -> Sequence[Task]:
        """The questions, whose gains may name other documents now; their ids stay, since pairs are made by them."""
        return tasks

    def environment(self, settings: SearchEnvironmentSettings) -> SearchEnvironmentSettings:
        """The environment's settings."""
        return settings

    def tools(self, tools: list[ToolSpec]) -> list[ToolSpec]:
        """The tools as the agent is told of them."""
        return tools

    def reply(self, reply: ParsedReply) -> ParsedReply:
        """A reply to these tools, as a reply to the undisturbed ones."""
        return reply

    def client(self, client: EvaluationSearch, doc_ids: Sequence[str], seed: int, episode: str) -> EvaluationSearch:
        """The search service as one episode meets it; `episode` is the same for every system."""
        return client


def free_id(wanted: str, taken: Container[str]) -> str:
    """`wanted`, or the first of `wanted-2`, `wanted-3` and so on that is not taken."""
    found, number = wanted, 1
    while found in taken:
        number += 1
        found = f"{wanted}-{number}"
    return found


def random_of(seed: int, *parts: object) -> random.Random:
    """A generator that depends on its arguments alone, not on the order in which episodes ask."""
    digest = hashlib.sha256("\x1f".join(map(str, (seed, *parts))).encode("utf-8", "replace")).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
