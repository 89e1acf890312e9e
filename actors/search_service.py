"""The search service: a Ray Serve application with one deployment per tool and a FastAPI ingress.

Rollout workers call the tools' deployments through handles; people and other programs use HTTP on localhost. One
application per run; one left over by an earlier job of the same name is replaced.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import ray
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from actors.remote import within
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.errors import ClusterError, SearchRequestError, ToolTimeoutError, ToolUnavailableError

DEPLOYMENTS = {"bm25_search": "Bm25Replica", "vector_search": "VectorReplica", "hybrid_search": "HybridReplica"}
HOST = "127.0.0.1"


class _Replica:
    """Answers one search tool over an index, of which it opens the parts that the tool needs."""

    tool = ""
    parts: tuple[str, ...] = ()

    def __init__(self, folder: str) -> None:
        import torch

        from rl_cluster.retrieval.index import SearchIndex

        torch.set_num_threads(1)
        self.index = SearchIndex.open(folder, self.parts)
        self.index.warm_up()

    async def search(self, query: str, k: int, excluded: tuple[str, ...]) -> list[tuple[str, str, str, float]]:
        hits = await asyncio.to_thread(self.index.search, self.tool, query, k, excluded)
        return [(hit.doc_id, hit.title, hit.snippet, hit.score) for hit in hits]

    async def document(self, doc_id: str) -> dict[str, Any]:
        document = self.index.document(doc_id)
        return {
            "doc_id": document.doc_id,
            "title": document.title,
            "text": document.text,
            "metadata": document.metadata,
        }


class Bm25Replica(_Replica):
    """Word search."""

    tool = "lexical"
    parts = ("lexical",)


class VectorReplica(_Replica):
    """Search by meaning."""

    tool = "vector"
    parts = ("vector",)


class HybridReplica(_Replica):
    """Search by words and by meaning, fused."""

    tool = "hybrid"
    parts = ("lexical", "vector")


class SearchRequest(BaseModel):
    """The body of POST /v1/search."""

    tool: str
    query: str = Field(min_length=1, max_length=10_000)
    k: int = Field(default=10, ge=1, le=100)
    excluded: list[str] = Field(default_factory=list)


def _ingress_class(index_id: str) -> type:
    app = FastAPI(title="rl_cluster search", version="1")

    @serve.ingress(app)
    class SearchIngress:
        def __init__(
            self, bm25: DeploymentHandle, vector: DeploymentHandle, hybrid: DeploymentHandle | None = None
        ) -> None:
            self.handles = {"bm25_search": bm25, "vector_search": vector}
            if hybrid is not None:
                self.handles["hybrid_search"] = hybrid

        @app.post("/v1/search")
        async def search(self, request: SearchRequest) -> dict[str, Any]:
            if request.tool not in self.handles:
                raise HTTPException(422, f"There is no tool {request.tool!r}; use one of {', '.join(self.handles)}.")
            try:
                hits = await self.handles[request.tool].search.remote(request.query, request.k, tuple(request.excluded))
            except SearchRequestError as error:
                raise HTTPException(422, str(error)) from error
            keys = ("doc_id", "title", "snippet", "score")
            return {"index_id": index_id, "hits": [dict(zip(keys, hit, strict=True)) for hit in hits]}

        @app.get("/v1/documents/{doc_id}")
        async def document(self, doc_id: str) -> dict[str, Any]:
            try:
                return await self.handles["bm25_search"].document.remote(doc_id)
            except SearchRequestError as error:
                raise HTTPException(404, str(error)) from error

        @app.get("/healthz")
        async def health(self) -> dict[str, str]:
            return {"status": "ok", "index_id": index_id}

    return SearchIngress


def check_port(port: int) -> None:
    """Raises ClusterError when another program listens on `port` of localhost."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ClusterError(
                f"search.port={port} is in use on {HOST}; stop its owner or set search.port to a free one."
            ) from error


def is_serving() -> bool:
    """Whether Ray Serve already runs on this cluster (its own port is then taken by itself)."""
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def start_search(
    folder: str,
    index_id: str,
    app_name: str,
    port: int,
    replicas: int = 1,
    cpus_per_replica: float = 0.0,
    max_ongoing_requests: int = 64,
    hybrid: bool = False,
) -> None:
    """Deploys the application and returns when it is healthy; a left-over of the same name is replaced.

    `hybrid`: whether `hybrid_search` is offered beside the other two tools.
    """
    if not is_serving():
        check_port(port)
    serve.start(http_options={"host": HOST, "port": port}, logging_config={"log_level": "WARNING"})
    if app_name in serve.status().applications:
        serve.delete(app_name)
    options: dict[str, Any] = {
        "num_replicas": replicas,
        "max_ongoing_requests": max_ongoing_requests,
        "max_queued_requests": 16 * max_ongoing_requests,
        "ray_actor_options": {"num_cpus": cpus_per_replica},
    }
    replicas_of_tools = [Bm25Replica, VectorReplica, HybridReplica] if hybrid else [Bm25Replica, VectorReplica]
    tools = [serve.deployment(replica, **options).bind(folder) for replica in replicas_of_tools]
    ingress = serve.deployment(_ingress_class(index_id), ray_actor_options={"num_cpus": 0})
    serve.run(ingress.bind(*tools), name=app_name, route_prefix=f"/{app_name}", logging_config={"log_level": "WARNING"})


def stop_search(app_name: str) -> None:
    """Deletes this run's application; others stay."""
    if is_serving() and app_name in serve.status().applications:
        serve.delete(app_name)


class ServeSearchClient:
    """Searches through the deployments' handles; every call has a deadline."""

    def __init__(self, app_name: str, timeout_s: float) -> None:
        self.app_name = app_name
        self.timeout_s = timeout_s
        self.handles = {tool: self._handle(tool) for tool in ("bm25_search", "vector_search")}

    def _handle(self, tool: str) -> DeploymentHandle:
        return serve.get_deployment_handle(DEPLOYMENTS[tool], self.app_name)

    async def search(self, tool: str, query: str, k: int, excluded: tuple[str, ...]) -> list[FoundDocument]:
        """See environments.search.SearchClient."""
        try:
            if tool not in self.handles:  # hybrid_search, which few runs deploy
                self.handles[tool] = self._handle(tool)
            response = self.handles[tool].search.remote(query, k, excluded)
            hits = await within(self.timeout_s, response)
        except SearchRequestError:
            raise
        except TimeoutError as error:
            raise ToolTimeoutError(f"{tool} did not answer within {self.timeout_s:.0f} s.") from error
        except (BackPressureError, RayServeException, RayError) as error:
            raise ToolUnavailableError(f"{tool} is not available: {error}") from error
        return [FoundDocument(doc_id, title, snippet) for doc_id, title, snippet, _ in hits]
