"""The tools of a searching agent: what a model is told of them, and what a call gives.

Training and the service's MCP endpoint both call them here, so that a trained agent meets the same tools wherever it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_cluster.environments.hits import FoundDocument, format_documents
from rl_cluster.episodes.formats.base import ToolSpec
from rl_cluster.episodes.trajectory import ToolCall
from rl_cluster.errors import SearchRequestError

READ_TOOL = "read_document"
_DESCRIPTIONS = {
    "bm25_search": "finds exact words and codes",
    "vector_search": "finds by meaning",
    "hybrid_search": "finds by words and meaning",
}
_QUERY = {"type": "string", "description": "what to search for"}


@dataclass(frozen=True)
class SearchToolSettings:
    """`k` results a search unless the call says otherwise, at most `max_k`.

    `tools`: those on offer; `filter_fields`: fields of metadata that searches may be limited by, none by default.
    """

    k: int
    max_k: int
    tools: tuple[str, ...] = ("bm25_search", "vector_search")
    filter_fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadPart:
    """Part `part` of `parts` of a document, as the model sees it."""

    doc_id: str
    title: str
    text: str
    part: int
    parts: int


class SearchClient(Protocol):
    """How an environment reaches the search service.

    Raises ToolTimeoutError or ToolUnavailableError when the service fails, SearchRequestError when the call is wrong.
    """

    async def search(
        self, tool: str, query: str, k: int, excluded: tuple[str, ...], filters: Mapping[str, Any] | None = None
    ) -> list[FoundDocument]: ...

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart: ...


@dataclass(frozen=True)
class ToolResult:
    """What a call gave: the text that the model sees, and the documents that a search found."""

    observation: str
    found: list[FoundDocument] = field(default_factory=list)


def tool_specs(settings: SearchToolSettings) -> list[ToolSpec]:
    """The tools as the model is told of them."""
    return [_read_spec() if name == READ_TOOL else _search_spec(name, settings) for name in settings.tools]


async def call_tool(
    client: SearchClient, settings: SearchToolSettings, call: ToolCall, excluded: tuple[str, ...]
) -> ToolResult:
    """Carries out a call whose arguments have the right types. Raises what the client raises, SearchRequestError too."""
    if call.name == READ_TOOL:
        part = call.arguments.get("part", 1)
        if not isinstance(part, int) or part < 1:
            raise SearchRequestError("part must be 1 or more")
        found = await client.read(str(call.arguments["doc_id"]).strip(), part, excluded)
        line = " ".join(found.text.split())
        return ToolResult(f"{found.doc_id} | {found.title} | part {found.part} of {found.parts}: {line}")
    k = call.arguments.get("k", settings.k)
    if not isinstance(k, int) or not 1 <= k <= settings.max_k:
        raise SearchRequestError(f"k must be 1 to {settings.max_k}")
    filters = call.arguments.get("filters")
    if isinstance(filters, Mapping):
        unknown = [name for name in filters if name not in settings.filter_fields]
        if unknown:
            raise SearchRequestError(
                f"there is no field {str(unknown[0])[:40]!r}; filter by {', '.join(settings.filter_fields)}"
            )
    limits = filters if isinstance(filters, Mapping) and filters else None
    documents = await client.search(call.name, str(call.arguments["query"]), k, excluded, limits)
    return ToolResult(format_documents(documents), documents)


def _search_spec(name: str, settings: SearchToolSettings) -> ToolSpec:
    properties: dict[str, Any] = {
        "query": _QUERY,
        "k": {"type": "integer", "description": f"results, 1 to {settings.max_k}"},
    }
    if settings.filter_fields:
        fields = ", ".join(settings.filter_fields)
        properties["filters"] = {
            "type": "object",
            "description": f'conditions on {fields}: a value, a list of values, or bounds such as {{"gte": 1, "lt": 9}}',
        }
    return ToolSpec(name, _DESCRIPTIONS[name], {"type": "object", "properties": properties, "required": ["query"]})


def _read_spec() -> ToolSpec:
    properties = {
        "doc_id": {"type": "string", "description": "id of a found document"},
        "part": {"type": "integer", "description": "which part, from 1"},
    }
    parameters = {"type": "object", "properties": properties, "required": ["doc_id"]}
    return ToolSpec(READ_TOOL, "reads a found document", parameters)
