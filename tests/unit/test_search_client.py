"""`ServeSearchClient` in front of a replica that is played here: what travels with a request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from actors.search_client import ServeSearchClient
from rl_cluster.errors import SearchRequestError, ToolTimeoutError
from rl_cluster.retrieval.hit import Hit
from rl_cluster.service.settings import CallLimits
from rl_cluster.service.values import Reply, Request, SearchAnswer, SearchRequest

LIMITS = CallLimits(2.0, 8, 2)


class Replica:
    """Stands for a deployment's handle; `answer.remote` gives what can be awaited, after `delay_s`."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.requests: list[Request] = []

    @property
    def answer(self) -> Replica:
        return self

    async def remote(self, requests: list[Request]) -> list[Reply]:
        self.requests += requests
        await asyncio.sleep(self.delay_s)
        return [SearchAnswer("index", [Hit("d1", "Title", "text", 1.0)]) for _ in requests]


def ask(replica: Replica, call: Any) -> Any:
    async def scenario() -> Any:
        client = ServeSearchClient("app", LIMITS)
        client._handle = lambda deployment: replica  # pyright: ignore[reportAttributeAccessIssue]
        return await call(client)

    return asyncio.run(scenario())


def deadline_of(replica: Replica) -> float:
    (request,) = replica.requests
    assert isinstance(request, SearchRequest)
    return request.deadline


def test_search_takes_the_deadline_of_the_settings_along() -> None:
    replica, started = Replica(), time.time()
    (found,) = ask(replica, lambda client: client.search("bm25_search", "pump", 1, ()))
    assert found.doc_id == "d1"
    assert started + 2.0 <= deadline_of(replica) <= time.time() + 2.0


@pytest.mark.parametrize(("asked_s", "given_s"), [(0.5, 0.5), (60.0, 2.0)])
def test_search_index_deadline_of_a_request_counts_where_it_is_the_earlier(asked_s: float, given_s: float) -> None:
    replica, started = Replica(), time.time()
    request = SearchRequest("bm25_search", "pump", 1, deadline=started + asked_s)
    ask(replica, lambda client: client.search_index(request))
    assert started + given_s <= deadline_of(replica) <= time.time() + given_s


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"filters": {"kind": [["wiki"]]}}, "has a list among its values"),
        ({"excluded": (1, 2)}, "An excluded id is a int"),
        ({"query": 5}, "The query is a int"),
        ({"k": "many"}, "'many'"),
        ({"index": 3}, "The index is a int"),
    ],
)
def test_search_index_request_of_wrong_types_is_refused_before_it_meets_others(
    changes: dict[str, Any], said: str
) -> None:
    replica, request = Replica(), SearchRequest("bm25_search", "pump", 1)

    async def both(client: ServeSearchClient) -> list[Any]:
        asked = (client.search_index(each) for each in (request, replace(request, **changes)))
        return await asyncio.gather(*asked, return_exceptions=True)

    good, wrong = ask(replica, both)
    assert isinstance(good, SearchAnswer)
    assert isinstance(wrong, SearchRequestError)
    assert said in str(wrong)
    assert len(replica.requests) == 1


def test_search_index_replica_that_answers_too_late_is_a_typed_timeout() -> None:
    replica = Replica(delay_s=30.0)
    request = SearchRequest("bm25_search", "pump", 1, deadline=time.time() + 0.1)
    with pytest.raises(ToolTimeoutError, match=r"bm25_search did not answer within 0\.1 s"):
        ask(replica, lambda client: client.search_index(request))
    assert len(replica.requests) == 1


def test_search_index_deadline_that_has_passed_asks_no_replica_and_says_so() -> None:
    replica = Replica()
    request = SearchRequest("bm25_search", "pump", 1, deadline=time.time() - 1.0)
    with pytest.raises(ToolTimeoutError, match="bm25_search was not asked: the deadline of the request had passed"):
        ask(replica, lambda client: client.search_index(request))
    assert replica.requests == []
