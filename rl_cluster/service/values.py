"""What the search service is asked and what it answers: plain values that cross process borders.

`deadline` is in seconds since the epoch, so that it holds wherever a request travels; the clocks of the hosts agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_cluster.errors import RLClusterError
from rl_cluster.retrieval.hit import Hit

# Tool as agents know it -> the kind of search that an index answers.
SEARCH_TOOLS = {"bm25_search": "lexical", "vector_search": "vector", "hybrid_search": "hybrid"}
TOOL_PARTS = {
    "bm25_search": ("lexical",),
    "vector_search": ("vector",),
    "hybrid_search": ("lexical", "vector"),
}
"""Tool -> the parts of an index that its replicas open."""
WHOLE_TOOLS = ("hybrid_search",)
"""Tools whose replicas open whole indexes, also where those are cut into shards: fusion needs the ranks among all documents."""


def open_parts(tools: Iterable[str]) -> tuple[str, ...]:
    """The parts of an index that the replicas of these tools open together, in the order of `retrieval.settings.PARTS`; reading
    documents needs none of its own."""
    wanted = {part for tool in tools for part in TOOL_PARTS.get(tool, ())}
    return tuple(part for part in ("lexical", "vector") if part in wanted)


def documents_tool(tools: Iterable[str]) -> str:
    """The tool whose replicas are asked for documents: the first that searches, since each of them has all."""
    return next(tool for tool in tools if tool in SEARCH_TOOLS)


def shards_of(tool: str, shards: int) -> int:
    """How many deployments a tool has where indexes are cut into `shards`."""
    return 1 if tool in WHOLE_TOOLS else shards


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""Of an index, since its name stands in URLs."""


def http_address(host: str, port: int) -> str:
    """The beginning of a URL; an IPv6 address stands in brackets there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def index_name(corpus: str) -> str:
    """The name under which the index of a corpus is served: `bright/biology` becomes `bright-biology`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", corpus).lstrip("_.-")[:64] or "corpus"


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One search; `index` None is the first of the service's indexes."""

    tool: str
    query: str
    k: int
    excluded: tuple[str, ...] = ()
    filters: Mapping[str, Any] | None = None
    index: str | None = None
    deadline: float = math.inf


@dataclass(frozen=True, slots=True)
class DocumentRequest:
    """One part of a document, from 1."""

    doc_id: str
    part: int = 1
    excluded: tuple[str, ...] = ()
    index: str | None = None
    deadline: float = math.inf


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The results of one search, best first, and the content id of the index that gave them."""

    index_id: str
    hits: list[Hit]

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray asks Python about every object that it packs, plain tuples apart: with those it takes a fifth of the time.
        return _answer_of, (self.index_id, [(*hit,) for hit in self.hits])


@dataclass(frozen=True, slots=True)
class DocumentAnswer:
    """Part `part` of `parts` of a document, at characters `start` to `end` of its text."""

    index_id: str
    doc_id: str
    title: str
    text: str
    part: int
    parts: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """One index of a service. `filter_fields`: the fields of metadata that a search can be limited by."""

    name: str
    index_id: str
    corpus: str
    num_documents: int
    filter_fields: list[str] = field(default_factory=list)


Request = SearchRequest | DocumentRequest
Reply = SearchAnswer | DocumentAnswer | RLClusterError
"""An answer, or the error that the caller raises: a batch carries both."""


def _answer_of(index_id: str, hits: list[tuple[Any, ...]]) -> SearchAnswer:
    return SearchAnswer(index_id, [Hit(*hit) for hit in hits])
