"""An MCP endpoint (streamable HTTP, without sessions) with the tools that agents are trained on.

The tools search the first index of the service; at `/mcp?index=NAME` they search another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.lowlevel import Server
from starlette.routing import BaseRoute

from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search_tools import ReadPart, SearchToolSettings, call_tool, tool_specs
from rl_cluster.episodes.formats.base import check_arguments
from rl_cluster.errors import RLClusterError
from rl_cluster.service.metrics import ServiceMetrics
from rl_cluster.service.values import DocumentRequest, SearchRequest

if TYPE_CHECKING:
    from rl_cluster.service.http_app import Backend

_MAX_BODY_BYTES = 1 << 20


class McpEndpoint:
    """`running` must be entered once before requests come; `route` is the ASGI route at /mcp."""

    def __init__(
        self, backend: Backend, settings: SearchToolSettings, timeout_s: float, host: str, metrics: ServiceMetrics
    ):
        """`host`: where the service listens; on localhost, requests that name another host are refused."""
        self._backend = backend
        self._timeout_s = timeout_s
        self._settings = settings
        self._metrics = metrics
        self._specs = tool_specs(settings)
        server = Server("rl_cluster search", version="1", on_list_tools=self._list, on_call_tool=self._call)
        self._app = server.streamable_http_app(
            json_response=True, stateless_http=True, host=host, max_request_body_size=_MAX_BODY_BYTES
        )
        self._server = server

    def route(self) -> BaseRoute:
        """The route of the endpoint, to be added to an application."""
        return self._app.routes[0]

    def running(self) -> AbstractAsyncContextManager[Any]:
        """What must be entered while requests are answered."""
        return self._server.session_manager.run()

    async def _list(self, context: Any, parameters: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=spec.name, description=spec.description, input_schema=spec.parameters)
                for spec in self._specs
            ]
        )

    async def _call(self, context: Any, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        call = check_arguments(parameters.name, parameters.arguments or {}, self._specs)
        label = call.name if any(spec.name == call.name for spec in self._specs) else "unknown"
        if call.error is not None:
            self._metrics.tool_call(label, "SearchRequestError")
            return _text(call.error, is_error=True)
        try:
            client = _BackendClient(self._backend, self._timeout_s, _index_of(context))
            result = await call_tool(client, self._settings, call, ())
        except RLClusterError as error:
            self._metrics.tool_call(label, type(error).__name__)
            return _text(str(error), is_error=True)
        self._metrics.tool_call(label, "ok", len(result.found))
        return _text(result.observation, is_error=False)


class _BackendClient:
    """A backend as the SearchClient of agents: nothing excluded, the first index where none is named."""

    def __init__(self, backend: Backend, timeout_s: float, index: str | None):
        self._backend = backend
        self._timeout_s = timeout_s
        self._index = index

    async def search(
        self, tool: str, query: str, k: int, excluded: tuple[str, ...], filters: Mapping[str, Any] | None = None
    ) -> list[FoundDocument]:
        request = SearchRequest(tool, query, k, excluded, filters, self._index, time.time() + self._timeout_s)
        answer = await self._backend.search_index(request)
        return [FoundDocument(hit.doc_id, hit.title, hit.snippet) for hit in answer.hits]

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart:
        request = DocumentRequest(doc_id, part, excluded, self._index, time.time() + self._timeout_s)
        found = await self._backend.read_index(request)
        return ReadPart(found.doc_id, found.title, found.text, found.part, found.parts)


def _index_of(context: Any) -> str | None:
    """The index that the address of the call names."""
    return None if context.request is None else context.request.query_params.get("index")


def _text(text: str, is_error: bool) -> types.CallToolResult:
    safe = text.encode("utf-8", "replace").decode()
    return types.CallToolResult(content=[types.TextContent(type="text", text=safe)], is_error=is_error)
