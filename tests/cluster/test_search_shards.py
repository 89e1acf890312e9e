"""A service of shards on real Ray Serve answers as the whole index does, and is swapped like it."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.errors import IndexFormatError, RLClusterError, SearchRequestError
from rl_cluster.retrieval.index import SearchIndex
from rl_cluster.retrieval.shards import cut
from rl_cluster.service.settings import CallLimits, ServiceSettings
from rl_cluster.service.values import SEARCH_TOOLS, DocumentRequest, SearchAnswer, SearchRequest
from tests.cluster.ports import SEARCH_PORT
from tests.helpers.small_index import build_index, documents

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420), pytest.mark.usefixtures("ray_cluster")]

APP = "search-shards"
TOOLS = ("bm25_search", "vector_search", "hybrid_search", "read_document")
SHARDS = 2
LIMITS = CallLimits(timeout_s=60.0, shards=SHARDS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("indexes")
    found = {f"s{number}": build_index(root / f"s{number}", number, ("lexical", "vector")) for number in (1, 2)}
    for folder in found.values():
        cut(folder, SHARDS)
    return found


@pytest.fixture(scope="module")
def service(ray_cluster: None, folders: dict[str, str]) -> Iterator[str]:
    from actors.search_service import start_search, stop_search

    settings = ServiceSettings(SearchToolSettings(5, 10, TOOLS), LIMITS, "127.0.0.1", SEARCH_PORT)
    start_search({"kb": folders["s1"]}, APP, settings)
    yield f"http://127.0.0.1:{SEARCH_PORT}/{APP}"
    stop_search(APP)


def client() -> Any:
    from actors.search_client import ServeSearchClient

    return ServeSearchClient(APP, LIMITS)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("tool", list(SEARCH_TOOLS))
def test_answers_of_a_service_in_shards_equal_the_whole(service: str, folders: dict[str, str], tool: str) -> None:
    index = SearchIndex.open(folders["s1"])
    requests = [
        SearchRequest(tool, f"how is the {word} of line {i} kept", k, ("d003",), {"year": {"gte": 2001}})
        for i, (word, k) in enumerate([("pump", 3), ("valve", 50), ("boiler", 1), ("audit", 100)] * 3)
    ]

    async def scenario() -> list[SearchAnswer]:
        asking = client()
        return await asyncio.gather(*(asking.search_index(request) for request in requests))

    for request, answer in zip(requests, asyncio.run(scenario()), strict=True):
        expected = index.search(SEARCH_TOOLS[tool], request.query, request.k, request.excluded, request.filters)
        assert answer.index_id == index.index_id
        assert [(h.doc_id, h.title, h.snippet, h.part) for h in answer.hits] == [
            (h.doc_id, h.title, h.snippet, h.part) for h in expected
        ]
        assert [h.score for h in answer.hits] == [h.score for h in expected]


def test_documents_and_errors_of_a_service_in_shards_are_those_of_the_whole(service: str) -> None:
    async def scenario() -> list[Any]:
        asking = client()
        found = [asking.read_index(DocumentRequest(document.doc_id)) for document in documents(1)]
        wrong = [asking.read_index(DocumentRequest("nope")), asking.search("bm25_search", "", 3, ())]
        return await asyncio.gather(*found, *wrong, return_exceptions=True)

    *found, unknown, empty = asyncio.run(scenario())
    assert [answer.doc_id for answer in found] == [document.doc_id for document in documents(1)]
    assert isinstance(unknown, SearchRequestError)
    assert isinstance(empty, SearchRequestError)
    (listed,) = get(f"{service}/v1/indexes")["indexes"]
    assert (listed["name"], listed["num_documents"]) == ("kb", len(documents(1)))
    assert get(f"{service}/v1/documents/hostile?part=2")["parts"] == 3


def test_new_snapshot_in_shards_is_swapped_in_without_a_mixed_answer(
    service: str, folders: dict[str, str], tmp_path: Path
) -> None:
    from actors.search_service import swap_index

    answers: list[SearchAnswer] = []
    failures: list[BaseException] = []
    ended = threading.Event()

    def ask() -> None:
        async def scenario() -> None:
            asking = client()
            while not ended.is_set():
                try:
                    answers.append(await asking.search_index(SearchRequest("bm25_search", "snapshot pump", 60)))
                except RLClusterError as error:
                    failures.append(error)

        asyncio.run(scenario())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        uncut = build_index(tmp_path / "uncut", 2, ("lexical", "vector"))
        with pytest.raises(IndexFormatError, match="is not cut into 2 shards"):
            swap_index(APP, "kb", uncut, shards=SHARDS)
        for name in ("s2", "s1", "s2"):
            swapped = swap_index(APP, "kb", folders[name], shards=SHARDS)
    finally:
        ended.set()
        thread.join(60)
    assert failures == []
    assert swapped.num_documents == len(documents(2))
    assert {answer.index_id for answer in answers} == {SearchIndex.open(folders[name], ()).index_id for name in folders}
    for answer in answers:
        number = 2 if answer.index_id == swapped.index_id else 1
        assert {hit.snippet[:10] for hit in answer.hits if hit.doc_id != "hostile"} == {f"Snapshot {number}"}
