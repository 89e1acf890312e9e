"""What a drift may change, all of which stays as it is unless a drift says otherwise."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl_cluster.config import Section
from rl_cluster.datasets.task import Document, Task
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.environments.search_tools import ReadPart
from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec


class NoSettings(Section):
    """Of drifts that have none."""


class EvaluationSearch(Protocol):
    """A search client that can leave out snippets, which cost more than the search where a hundred hits are wanted.

    Raises as `environments.search_tools.SearchClient` does, and is one.
    """

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


class ChangedSearch:
    """A client in front of another one; what a drift leaves as it is goes through. A drift of searches overrides `answer`."""

    def __init__(self, inner: EvaluationSearch) -> None:
        self.inner = inner

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
        return await self.inner.search(asked.tool, asked.query, asked.k, asked.excluded, asked.filters, asked.snippets)

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart:
        return await self.inner.read(doc_id, part, excluded)


class SometimesChanged(ChangedSearch):
    """Changes a share `rate` of the searches; which ones, `seed`, `kind`, the query and how often it was asked decide."""

    def __init__(self, inner: EvaluationSearch, kind: str, rate: float, seed: int) -> None:
        super().__init__(inner)
        self.kind = kind
        self.rate = rate
        self.seed = seed
        self.times: Counter[tuple[str, str]] = Counter()

    async def answer(self, asked: Asked) -> list[FoundDocument]:
        self.times[asked.tool, asked.query] += 1  # the same query may be let through the next time
        chance = random_of(self.seed, self.kind, asked.tool, asked.query, self.times[asked.tool, asked.query])
        if chance.random() < self.rate:
            await self.change(asked)
        return await super().answer(asked)

    async def change(self, asked: Asked) -> None:
        """Happens before the search; what it raises, the agent meets."""


class Drift:
    """Every change is decided by `seed` and what it applies to alone."""

    filters: Mapping[str, Any] | None = None
    """Conditions on metadata that the search service now adds to every search."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    @property
    def description(self) -> str:
        """One line for the report."""
        return "nothing is changed"

    def documents(self, documents: Sequence[Document], seed: int) -> Sequence[Document]:
        """The collection that is searched."""
        return documents

    def tasks(self, tasks: Sequence[Task], seed: int) -> Sequence[Task]:
        """The questions, whose gains may name other documents now; their ids stay, since pairs are made by them."""
        return tasks

    def environment(self, settings: SearchEnvironmentSettings) -> SearchEnvironmentSettings:
        """The environment's settings."""
        return settings

    def tools(self, tools: list[ToolSpec], shows_schema: bool) -> list[ToolSpec]:
        """The tools as the agent is told of them; `shows_schema` is False for a format that shows no arguments."""
        return tools

    def reply(self, reply: ParsedReply) -> ParsedReply:
        """A reply to these tools, as a reply to the undisturbed ones."""
        return reply

    def client(self, client: EvaluationSearch, doc_ids: Sequence[str], seed: int) -> EvaluationSearch:
        """The search service as the agent meets it."""
        return client


def random_of(seed: int, *parts: object) -> random.Random:
    """A generator that depends on its arguments alone, not on the order in which episodes ask."""
    digest = hashlib.sha256("\x1f".join(map(str, (seed, *parts))).encode("utf-8", "replace")).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
