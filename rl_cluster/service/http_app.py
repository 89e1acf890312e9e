"""The HTTP interface of the search service: a FastAPI application over a backend that answers requests.

Every failure has a status and the body {"error": {"type", "message"}}: 422 for a wrong request, 404 for an unknown document,
503 with Retry-After where the service has no room or no replica, 504 where the deadline passed. Where more requests wait than the
ingress takes, Ray Serve's proxy answers 503 in plain text of its own, which no metric here counts.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Protocol

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from rl_cluster.environments.search_tools import READ_TOOL, SearchToolSettings
from rl_cluster.errors import (
    DeadlineError,
    IndexFormatError,
    RLClusterError,
    SearchRequestError,
    ToolTimeoutError,
    ToolUnavailableError,
)
from rl_cluster.service import http_schema as schema
from rl_cluster.service.access import AccessControl
from rl_cluster.service.mcp_endpoint import McpEndpoint
from rl_cluster.service.metrics import CONTENT_TYPE, ServiceMetrics
from rl_cluster.service.values import (
    NAME_PATTERN,
    DocumentAnswer,
    DocumentRequest,
    IndexDescription,
    SearchAnswer,
    SearchRequest,
)

RETRY_AFTER_S = 1
_MAX_MESSAGE = 500


@dataclass(frozen=True)
class HttpSettings:
    """`tools`: those of the MCP endpoint, with their k; `timeout_s`: the longest deadline; `digest`: that of the token."""

    tools: SearchToolSettings
    timeout_s: float
    host: str
    digest: str | None = None


class Backend(Protocol):
    """What answers. Raises SearchRequestError, ToolTimeoutError, ToolUnavailableError; `swap` IndexFormatError too."""

    async def search_index(self, request: SearchRequest) -> SearchAnswer: ...

    async def read_index(self, request: DocumentRequest) -> DocumentAnswer: ...

    async def indexes(self) -> list[IndexDescription]: ...

    async def check(self, tools: Sequence[str]) -> None: ...

    async def swap(self, name: str, folder: str) -> IndexDescription: ...


def build_app(backend: Backend, settings: HttpSettings) -> Any:
    """The ASGI application, access control included."""
    metrics = ServiceMetrics()
    endpoint = McpEndpoint(backend, settings.tools, settings.timeout_s, settings.host, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with endpoint.running():
            yield

    app = FastAPI(
        title="rl_cluster search",
        version="1",
        description="The search that agents are trained on. MCP clients find the same tools at /mcp, over another index at /mcp?index=NAME.",
        lifespan=lifespan,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if settings.digest else [],
        responses={code: {"model": schema.ErrorResult} for code in (401, 404, 422, 503, 504)},
        redoc_url=None,
    )
    app.router.routes.append(endpoint.route())
    _add_routes(app, backend, settings, metrics)
    for kind in (RLClusterError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(Exception, _answer_bug)
    app.add_middleware(AccessControl, digest=settings.digest, metrics=metrics)
    return app


def _add_routes(app: FastAPI, backend: Backend, settings: HttpSettings, metrics: ServiceMetrics) -> None:
    searches = [name for name in settings.tools.tools if name != READ_TOOL]

    def deadline(timeout_s: float | None) -> float:
        return time.time() + min(timeout_s or settings.timeout_s, settings.timeout_s)

    @app.post("/v1/search", response_model=schema.SearchResult)
    async def search(body: schema.SearchBody) -> dict[str, Any]:
        """Searches one index with one tool."""
        asked = SearchRequest(
            body.tool, body.query, body.k, tuple(body.excluded), body.filters, body.index, deadline(body.timeout_s)
        )
        if body.tool not in searches:
            metrics.tool_call("unknown", SearchRequestError.__name__)
            raise SearchRequestError(f"There is no tool {body.tool[:80]!r} here; use one of {', '.join(searches)}.")
        answer = await _counted(metrics, body.tool, lambda: backend.search_index(asked), lambda found: len(found.hits))
        return {"index_id": answer.index_id, "hits": [hit._asdict() for hit in answer.hits]}

    @app.get("/v1/documents/{doc_id:path}", response_model=schema.DocumentResult)
    async def document(
        doc_id: str,
        index: str | None = None,
        part: int = Query(default=1, description="from 1; hits name the part that their snippet is from"),
    ) -> dict[str, Any]:
        """Reads one part of a document, about 200 words."""
        asked = DocumentRequest(doc_id, part, (), index, deadline(None))
        try:
            return asdict(await _counted(metrics, READ_TOOL, lambda: backend.read_index(asked), lambda found: 1))
        except SearchRequestError as error:
            raise HTTPException(404, str(error)) from error

    @app.get("/v1/indexes", response_model=schema.IndexesResult)
    async def indexes() -> dict[str, Any]:
        """Lists tools and indexes."""
        return {
            "tools": list(settings.tools.tools),
            "indexes": [asdict(found) for found in await backend.indexes()],
        }

    @app.post("/v1/indexes/{name}", response_model=schema.IndexBody)
    async def swap(name: Annotated[str, Path(pattern=NAME_PATTERN)], body: schema.SwapBody) -> dict[str, Any]:
        """Makes a name stand for another index folder, without a request that fails; for holders of the token only."""
        if settings.digest is None:
            raise HTTPException(403, "Indexes are swapped only where a token is set; set search.token_env.")
        return asdict(await backend.swap(name, body.folder))

    @app.get("/healthz", response_model=schema.Health)
    async def health() -> dict[str, str]:
        """Whether every tool answers."""
        await backend.check(settings.tools.tools)
        return {"status": "ok"}

    @app.get("/metrics")
    async def exposition() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)


async def _counted(metrics: ServiceMetrics, tool: str, call: Callable[[], Any], size: Callable[[Any], int]) -> Any:
    try:
        answer = await call()
    except RLClusterError as error:
        metrics.tool_call(tool, type(error).__name__)
        raise
    metrics.tool_call(tool, "ok", size(answer))
    return answer


# Class of an error -> status and word.
_STATUSES: list[tuple[type[Exception], int, str]] = [
    (SearchRequestError, 422, "bad_request"),
    (IndexFormatError, 422, "bad_index"),
    (ToolTimeoutError, 504, "timeout"),
    (DeadlineError, 504, "timeout"),
    (ToolUnavailableError, 503, "unavailable"),
]


async def _answer_error(_: Request, error: Exception) -> Response:
    if (
        isinstance(error, HTTPException) and error.status_code == 400
    ):  # what Python's own JSON reader does not get through
        return _error(
            422,
            "bad_request",
            "The body is no JSON that can be read; send UTF-8, numbers of a usual length, and no deep nesting.",
        )
    if isinstance(error, HTTPException):
        words = {403: "forbidden", 404: "not_found", 405: "method_not_allowed"}
        return _error(error.status_code, words.get(error.status_code, "error"), str(error.detail))
    if isinstance(error, RequestValidationError):
        problem = error.errors()[0]
        if problem["type"] == "json_invalid":
            return _error(422, "bad_request", f"The body is no JSON: {problem['ctx']['error']}.")
        if tuple(problem["loc"]) == ("body",):
            return _error(
                422, "bad_request", "The body is no JSON object; send one, with content-type: application/json."
            )
        where = ".".join(str(part) for part in problem["loc"] if part != "body") or "the body"
        return _error(422, "bad_request", f"{where} is refused: {problem['msg']}.")
    for kind, status, word in _STATUSES:
        if isinstance(error, kind):
            return _error(status, word, str(error))
    return _error(500, "internal", str(error))


async def _answer_bug(_: Request, error: Exception) -> Response:
    return _error(500, "internal", f"The service failed ({type(error).__name__}); its log says more.")


def _error(status: int, kind: str, message: str) -> Response:
    # What a caller sent may stand in the message, also half a character, which JSON cannot carry.
    text = message[:_MAX_MESSAGE].encode("utf-8", "replace").decode()
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return JSONResponse({"error": {"type": kind, "message": text}}, status, headers)
