"""`ServeSearchClient`: the search service through Ray handles, for rollout workers and for the HTTP ingress alike.

Every request has a deadline, which travels with it. Requests that wait are sent as one call, where indexes are cut one to each
shard. A replica that dies while it answers is followed by another one within the deadline; a search changes nothing, so that
asking again is safe.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from actors.index_registry import NAMESPACE, registry_name
from actors.remote import is_loss, value_of, within
from rl_cluster.config import SearchConfig
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search_tools import ReadPart, SearchClient
from rl_cluster.errors import (
    DeadlineError,
    IndexFormatError,
    RLClusterError,
    SearchRequestError,
    ToolTimeoutError,
    ToolUnavailableError,
    first_line,
)
from rl_cluster.retrieval.conditions import check_conditions
from rl_cluster.service.coalescer import Coalescer
from rl_cluster.service.http_search import HttpSearchClient, http_search_settings
from rl_cluster.service.merging import described, merged
from rl_cluster.service.settings import CallLimits, call_limits
from rl_cluster.service.values import (
    SEARCH_TOOLS,
    DocumentAnswer,
    DocumentRequest,
    IndexDescription,
    Reply,
    Request,
    SearchAnswer,
    SearchRequest,
    documents_tool,
    index_name,
    shards_of,
)

DEPLOYMENTS = {"bm25_search": "Bm25Replica", "vector_search": "VectorReplica", "hybrid_search": "HybridReplica"}
_RETRY_PAUSE_S = 0.1
_DESCRIBE_TIMEOUT_S = 10.0
SWAP_TIMEOUT_S = 300.0


def deployments(tool: str, shards: int) -> list[str]:
    """The names of a tool's deployments, one for each shard that they open."""
    number = shards_of(tool, shards)
    return [DEPLOYMENTS[tool] if number == 1 else f"{DEPLOYMENTS[tool]}-{shard}" for shard in range(number)]


class ServeSearchClient:
    """Belongs to one event loop. See environments.search_tools.SearchClient and service.http_app.Backend.

    As a SearchClient it asks the first of the service's indexes, or the one that `over` names.
    """

    def __init__(self, app_name: str, limits: CallLimits, documents_from: str = "bm25_search") -> None:
        """`documents_from`: the tool whose replicas are asked for documents; each of them has all."""
        self.app_name = app_name
        self.limits = limits
        self.documents_from = documents_from
        self.index: str | None = None
        self._handles: dict[str, DeploymentHandle] = {}
        self._lines: dict[str, Coalescer[Request, Reply]] = {}

    def over(self, corpus: str) -> SearchClient:
        """The same client for the index of one corpus; what waits is still sent together."""
        narrowed = copy.copy(self)
        narrowed.index = index_name(corpus)
        return narrowed

    async def search(
        self, tool: str, query: str, k: int, excluded: tuple[str, ...], filters: Mapping[str, Any] | None = None
    ) -> list[FoundDocument]:
        """See environments.search_tools.SearchClient."""
        deadline = time.time() + self.limits.timeout_s
        answer = await self.search_index(SearchRequest(tool, query, k, excluded, filters, self.index, deadline))
        return [FoundDocument(hit.doc_id, hit.title, hit.snippet) for hit in answer.hits]

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart:
        """See environments.search_tools.SearchClient."""
        found = await self.read_index(DocumentRequest(doc_id, part, excluded, self.index))
        return ReadPart(found.doc_id, found.title, found.text, found.part, found.parts)

    async def search_index(self, request: SearchRequest) -> SearchAnswer:
        """Raises SearchRequestError, ToolTimeoutError or ToolUnavailableError."""
        if request.tool not in SEARCH_TOOLS:
            raise SearchRequestError(
                f"There is no tool {str(request.tool)[:80]!r}; use one of {', '.join(SEARCH_TOOLS)}."
            )
        _check_types(request, query=request.query)
        if request.filters is not None:
            check_conditions(request.filters)
        answer = await self._ask(request.tool, request)
        assert isinstance(answer, SearchAnswer)
        return answer

    async def read_index(self, request: DocumentRequest) -> DocumentAnswer:
        """Raises SearchRequestError, ToolTimeoutError or ToolUnavailableError."""
        _check_types(request, doc_id=request.doc_id)
        answer = await self._ask(self.documents_from, request)
        assert isinstance(answer, DocumentAnswer)
        return answer

    async def indexes(self) -> list[IndexDescription]:
        """What one replica, or one of each shard, answers from."""
        names = deployments(self.documents_from, self.limits.shards)
        return described(await asyncio.gather(*map(self._description, names)))

    async def check(self, tools: Sequence[str]) -> None:
        """Asks one replica of each deployment of these tools. Raises ToolTimeoutError or ToolUnavailableError for the first that
        does not answer."""
        names = {name for tool in tools if tool in DEPLOYMENTS for name in deployments(tool, self.limits.shards)}
        await asyncio.gather(*map(self._description, sorted(names)))

    async def _description(self, deployment: str) -> list[IndexDescription]:
        try:
            return await within(_DESCRIBE_TIMEOUT_S, value_of(self._handle(deployment).describe.remote()))
        except TimeoutError as error:
            raise ToolTimeoutError(
                f"No replica of {deployment} described its indexes within {_DESCRIBE_TIMEOUT_S:.0f} s."
            ) from error
        except (RayServeException, RayError) as error:
            raise ToolUnavailableError(
                f"{deployment} of the search service is not available: {first_line(error)}."
            ) from error

    async def swap(self, name: str, folder: str) -> IndexDescription:
        """Makes `name` stand for the index in `folder` at all replicas. Raises IndexFormatError, DeadlineError."""
        if not folder.isprintable():
            raise IndexFormatError(f"The folder {folder!r} is no path; give that of an index.")
        try:
            registry = ray.get_actor(registry_name(self.app_name), NAMESPACE)
            await within(SWAP_TIMEOUT_S + 10, registry.swap.remote(name, folder, SWAP_TIMEOUT_S))
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, RLClusterError):
                raise cause from None
            raise
        except TimeoutError as error:
            raise DeadlineError(f"The swap of {name!r} did not end within {SWAP_TIMEOUT_S:.0f} s.") from error
        except (ValueError, RayError) as error:
            raise ToolUnavailableError(f"The search service is not available: {first_line(error)}.") from error
        return next(found for found in await self.indexes() if found.name == name)

    async def _ask(self, tool: str, request: Request) -> SearchAnswer | DocumentAnswer:
        now = time.time()
        if request.deadline > now + self.limits.timeout_s:
            request = replace(request, deadline=now + self.limits.timeout_s)
        if request.deadline <= now:
            raise ToolTimeoutError(f"{tool} was not asked: the deadline of the request had passed before.")
        try:
            reply = await within(request.deadline - now, self._line(tool).submit(request))
        except TimeoutError as error:
            raise ToolTimeoutError(f"{tool} did not answer within {request.deadline - now:.1f} s.") from error
        if isinstance(reply, RLClusterError):
            raise reply
        return reply

    def _line(self, tool: str) -> Coalescer[Request, Reply]:
        if tool not in self._lines:
            limits = self.limits

            async def send(requests: list[Request]) -> list[Reply]:
                return await self._send(tool, requests)

            self._lines[tool] = Coalescer(
                send,
                max_batch=limits.max_batch,
                max_in_flight=limits.max_in_flight,
                max_waiting=limits.max_waiting,
                spread=max(1, limits.max_in_flight // 2),
                name=tool,
            )
        return self._lines[tool]

    async def _send(self, tool: str, requests: list[Request]) -> list[Reply]:
        """The replies of the tool's replicas, from all shards, in the order of the requests."""
        names = deployments(tool, self.limits.shards)
        if len(names) == 1:
            return await self._send_to(names[0], requests)
        replies: dict[int, Reply] = {}
        asked = list(range(len(requests)))
        while True:
            some = [requests[place] for place in asked]
            shards = await asyncio.gather(*(self._send_to(name, some) for name in names))
            for place, request, found in zip(asked, some, zip(*shards, strict=True), strict=True):
                reply = merged(request, found)
                if reply is not None:
                    replies[place] = reply
            asked = [place for place in asked if place not in replies]
            if not asked:
                return [replies[place] for place in range(len(requests))]
            # A replica answers what is over its deadline with an error, so that this ends.
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _send_to(self, deployment: str, requests: list[Request]) -> list[Reply]:
        deadline = max(request.deadline for request in requests)
        while True:
            try:
                return await within(deadline - time.time(), self._handle(deployment).answer.remote(requests))
            except (RayServeException, RayError) as error:
                if not (is_loss(error) or isinstance(error, ReplicaUnavailableError)):
                    raise ToolUnavailableError(f"{deployment} is not available: {first_line(error)}.") from error
                if time.time() + _RETRY_PAUSE_S >= deadline:
                    raise ToolUnavailableError(f"{deployment} lost its replica: {first_line(error)}.") from error
                await asyncio.sleep(_RETRY_PAUSE_S)

    def _handle(self, deployment: str) -> DeploymentHandle:
        if deployment not in self._handles:
            self._handles[deployment] = serve.get_deployment_handle(deployment, self.app_name)
        return self._handles[deployment]


@dataclass(frozen=True)
class SearchAccess:
    """How a run's workers reach its search: an application of Ray Serve, or an endpoint of the team's own.

    `tools`: those that the policy is offered, and no others are deployed.
    """

    app_name: str
    search: SearchConfig
    tools: tuple[str, ...]


class CorpusClients(Protocol):
    """Access to the search of a run, one client for each corpus."""

    def over(self, corpus: str) -> SearchClient: ...


def open_search(access: SearchAccess) -> CorpusClients:
    """Clients for the event loop that runs. Raises ConfigError where the endpoint's token is not set on this machine."""
    if access.search.external is not None:
        return HttpSearchClient(http_search_settings(access.search))
    return ServeSearchClient(access.app_name, call_limits(access.search), documents_tool(access.tools))


def _check_types(request: Request, **texts: Any) -> None:
    """Raises SearchRequestError where a value is no text: requests travel together, and one that cannot be packed or understood must
    not stop the others."""
    for name, value in {**texts, "index": "" if request.index is None else request.index}.items():
        if not isinstance(value, str):
            raise SearchRequestError(f"The {name} is a {type(value).__name__}; give a text.")
    wrong = next((doc_id for doc_id in request.excluded if not isinstance(doc_id, str)), None)
    if wrong is not None:
        raise SearchRequestError(f"An excluded id is a {type(wrong).__name__}; give texts.")
    number = request.k if isinstance(request, SearchRequest) else request.part
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > 1 << 31:
        raise SearchRequestError(f"The number asked for is {repr(number)[:80]}; give a whole one of usual size.")
