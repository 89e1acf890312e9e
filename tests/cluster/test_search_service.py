"""The search service on real Ray Serve: every tool, HTTP, replicas that die, a new snapshot, too many requests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.task import Document
from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.errors import (
    DeadlineError,
    IndexFormatError,
    ModelError,
    RLClusterError,
    SearchRequestError,
    ToolTimeoutError,
    ToolUnavailableError,
)
from rl_cluster.retrieval.index import IndexSettings, SearchIndex
from rl_cluster.serve import SERVE
from rl_cluster.service.settings import CallLimits, ServiceSettings, service_settings
from rl_cluster.service.values import SEARCH_TOOLS, DocumentRequest, SearchAnswer, SearchRequest
from tests.cluster.conftest import ROOT
from tests.cluster.ports import SEARCH_PORT
from tests.helpers.configuration import load
from tests.helpers.small_index import HashEmbedder, build_index, documents

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420), pytest.mark.usefixtures("ray_cluster")]

APP = "search-test"
TOOLS = ("bm25_search", "vector_search", "hybrid_search", "read_document")
LIMITS = CallLimits(timeout_s=60.0)
BOTH = ("lexical", "vector")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("indexes")
    return {f"s{number}": build_index(root / f"s{number}", number, BOTH) for number in (1, 2)}


@pytest.fixture(scope="module")
def service(ray_cluster: None, folders: dict[str, str]) -> Iterator[str]:
    from actors.search_service import start_search, stop_search

    settings = ServiceSettings(SearchToolSettings(5, 10, TOOLS), LIMITS, "127.0.0.1", SEARCH_PORT)
    start_search({"kb": folders["s1"], "other": folders["s2"]}, APP, settings)
    yield f"http://127.0.0.1:{SEARCH_PORT}/{APP}"
    stop_search(APP)


def client(limits: CallLimits = LIMITS) -> Any:
    from actors.search_client import ServeSearchClient

    return ServeSearchClient(APP, limits)


def http(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def replica_processes(name: str, app: str = APP) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"{app}:{name}" in " ".join(process.info["cmdline"] or []) and process.uids().real == os.getuid()
    ]


@pytest.mark.parametrize("tool", list(SEARCH_TOOLS))
def test_handle_answers_equal_the_index_alone_and_batched(service: str, folders: dict[str, str], tool: str) -> None:
    index = SearchIndex.open(folders["s1"])
    queries = [f"how is the {word} of line {i} kept" for i, word in enumerate(["pump", "valve", "boiler", "audit"] * 5)]

    async def scenario() -> list[Any]:
        asking = client()
        together = await asyncio.gather(*(asking.search_index(SearchRequest(tool, q, 5)) for q in queries))
        alone = [await asking.search_index(SearchRequest(tool, q, 5)) for q in queries[:6]]
        assert together[:6] == alone
        return together

    for query, answer in zip(queries, asyncio.run(scenario()), strict=True):
        assert answer.index_id == index.index_id
        expected = index.search(SEARCH_TOOLS[tool], query, 5)
        assert [(h.doc_id, h.title, h.snippet, h.part) for h in answer.hits] == [
            (h.doc_id, h.title, h.snippet, h.part) for h in expected
        ]
        assert [h.score for h in answer.hits] == pytest.approx([h.score for h in expected], abs=1e-6)


def test_client_over_a_corpus_asks_its_index_alone(service: str, folders: dict[str, str]) -> None:
    async def scenario() -> list[Any]:
        asking = client()
        clients = [asking.over(name) for name in ("kb", "other", "absent/one")]
        searches = [each.search("bm25_search", "pump", 5, ()) for each in clients]
        return await asyncio.gather(*searches, return_exceptions=True)

    kb, other, absent = asyncio.run(scenario())
    for found, name in ((kb, "s1"), (other, "s2")):
        expected = SearchIndex.open(folders[name]).search("lexical", "pump", 5)
        assert [(hit.doc_id, hit.snippet) for hit in found] == [(hit.doc_id, hit.snippet) for hit in expected]
    assert kb != other
    assert "absent-one" in str(absent)


def test_http_serves_search_documents_indexes_documentation_and_mcp(service: str) -> None:
    status, found = http(f"{service}/v1/search", {"tool": "hybrid_search", "query": "pump", "k": 2, "index": "other"})
    assert status == 200
    assert len(found["hits"]) == 2
    _, listed = http(f"{service}/v1/indexes")
    assert [index["name"] for index in listed["indexes"]] == ["kb", "other"]
    assert found["index_id"] == listed["indexes"][1]["index_id"]
    assert http(f"{service}/v1/documents/hostile?part=2")[1]["parts"] == 3
    assert http(f"{service}/healthz") == (200, {"status": "ok"})
    assert "/v1/search" in http(f"{service}/openapi.json")[1]["paths"]
    with urllib.request.urlopen(f"{service}/docs", timeout=30) as page:
        assert f"/{APP}/openapi.json" in page.read().decode()
    with urllib.request.urlopen(f"{service}/metrics", timeout=30) as page:
        assert 'search_tool_calls_total{outcome="ok",tool="hybrid_search"}' in page.read().decode()

    async def ask_mcp(address: str) -> str:
        from mcp.client.client import Client

        async with Client(address) as mcp:
            assert [tool.name for tool in (await mcp.list_tools()).tools] == list(TOOLS)
            answer: Any = (await mcp.call_tool("vector_search", {"query": "pump", "k": 1})).content[0]
            return answer.text

    first, other = (asyncio.run(ask_mcp(f"{service}/mcp{index}")) for index in ("", "?index=other"))
    assert (first.count(" | "), other.count(" | ")) == (2, 2)
    assert first != other
    assert "absent" in asyncio.run(ask_mcp(f"{service}/mcp?index=absent"))


BAD = [
    {"query": ""},
    {"query": "x" * 100_000},
    {"k": 0},
    {"k": 10_000},
    {"index": "nope"},
    {"filters": {"nope": 1}},
    {"query": "half \ud800"},
]


@pytest.mark.parametrize("wrong", BAD)
def test_bad_input_is_typed_by_handle_and_by_http_and_stops_nothing(service: str, wrong: dict[str, Any]) -> None:
    values = {"tool": "bm25_search", "query": "pump", "k": 3, **wrong}
    with pytest.raises(SearchRequestError) as caught:
        asyncio.run(client().search_index(SearchRequest(**values)))
    assert "\n" not in str(caught.value)
    status, answer = http(f"{service}/v1/search", values)
    assert (status, answer["error"]["type"]) == (422, "bad_request")
    assert len(asyncio.run(client().search("bm25_search", "pump\0", 3, ()))) == 3


def test_document_by_handle_is_typed(service: str) -> None:
    part = asyncio.run(client().read("hostile", 1, ()))
    assert (part.part, part.parts) == (1, 3)
    with pytest.raises(SearchRequestError, match="must not be shown"):
        asyncio.run(client().read("d001", 1, ("d001",)))
    with pytest.raises(SearchRequestError, match="There is no document"):
        asyncio.run(client().read_index(DocumentRequest("nope")))


def test_deadline_that_passes_is_a_typed_timeout(service: str) -> None:
    with pytest.raises(ToolTimeoutError):
        asyncio.run(client().search_index(SearchRequest("bm25_search", "pump", 1, deadline=time.time() + 1e-4)))


def test_more_requests_than_may_wait_are_refused_and_the_others_answered(service: str) -> None:
    async def scenario() -> list[Any]:
        asking = client(CallLimits(60.0, max_batch=1, max_in_flight=1, max_waiting=5))
        calls = [asking.search("bm25_search", f"pump {i}", 1, ()) for i in range(40)]
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(scenario())
    refused = [outcome for outcome in outcomes if isinstance(outcome, ToolUnavailableError)]
    assert len(refused) == 35
    assert "5 requests waiting" in str(refused[0])
    assert all(isinstance(outcome, list) for outcome in outcomes if outcome not in refused)


def test_overload_over_http_is_refused_with_retry_after_and_passes(service: str, folders: dict[str, str]) -> None:
    from actors.search_service import start_search, stop_search

    app = "search-narrow"
    limits = ["search.max_queued_requests=2", "search.max_ongoing_requests=1", "search.max_batch=1"]
    search = load(SERVE, [f"indexes={{kb: {folders['s1']}}}", f"search.port={SEARCH_PORT}", *limits]).search

    def ask() -> tuple[int, Any]:
        """The status, and the ids found or the header Retry-After."""
        body = json.dumps({"tool": "bm25_search", "query": "a pump", "k": 3}).encode()
        url = f"http://127.0.0.1:{SEARCH_PORT}/{app}/v1/search"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, [hit["doc_id"] for hit in json.loads(answer.read())["hits"]]
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Retry-After"]

    right = (200, [hit.doc_id for hit in SearchIndex.open(folders["s1"]).search("lexical", "a pump", 3)])
    start_search({"kb": folders["s1"]}, app, service_settings(search, SearchToolSettings(5, 10, ("bm25_search",))))
    try:
        assert ask() == right
        (replica,) = replica_processes("Bm25Replica", app)
        replica.suspend()  # so that what is sent now waits, however quick the machine is
        with ThreadPoolExecutor(12) as threads:
            try:
                outcomes = as_completed([threads.submit(ask) for _ in range(12)], timeout=60)
                # Two calls are under way and two requests wait.
                refused = [next(outcomes).result() for _ in range(12 - 2 - 2)]
            finally:
                replica.resume()
            later = [outcome.result() for outcome in outcomes]
        assert refused == [(503, "1")] * len(refused)
        assert right in later
        assert [outcome for outcome in later if outcome not in (right, (503, "1"))] == []
        assert ask() == right
    finally:
        stop_search(app)


def test_replica_killed_while_answering_leaves_no_caller_without_an_answer(service: str) -> None:
    async def scenario() -> list[Any]:
        asking = client(CallLimits(90.0, max_batch=2, max_in_flight=4))
        calls = [asyncio.ensure_future(asking.search("bm25_search", f"pump line {i}", 3, ())) for i in range(400)]
        await calls[10]
        (victim,) = replica_processes("Bm25Replica")
        victim.kill()
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(scenario())
    assert [outcome for outcome in outcomes if isinstance(outcome, BaseException)] == []


def test_one_of_two_replicas_killed_leaves_its_requests_to_the_other(service: str, folders: dict[str, str]) -> None:
    import ray

    from actors.search_client import ServeSearchClient
    from actors.search_service import start_search, stop_search

    app = "search-two"
    start_search({"kb": folders["s1"]}, app, settings_of("bm25_search", min_replicas=2, max_replicas=2))
    serve_controller: Any = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    controller = psutil.Process(ray.get(serve_controller.get_pid.remote()))
    victim, other = replica_processes("Bm25Replica", app)

    async def scenario() -> tuple[int, list[Any]]:
        asking = ServeSearchClient(app, CallLimits(60.0, max_batch=1, max_in_flight=16))
        calls = [
            asyncio.ensure_future(asking.search_index(SearchRequest("bm25_search", "a pump", 3))) for _ in range(200)
        ]
        await calls[10]
        controller.suspend()  # nobody starts a replica in the place of the dead one
        victim.kill()
        left = sum(not call.done() for call in calls)
        return left, await asyncio.gather(*calls, return_exceptions=True)

    try:
        left, outcomes = asyncio.run(scenario())
        assert replica_processes("Bm25Replica", app) == [other]
    finally:
        controller.resume()
        stop_search(app)
    assert left
    expected = [hit.doc_id for hit in SearchIndex.open(folders["s1"]).search("lexical", "a pump", 3)]
    assert [outcome for outcome in outcomes if not isinstance(outcome, SearchAnswer)] == []
    assert all([hit.doc_id for hit in answer.hits] == expected for answer in outcomes)


def test_new_snapshot_is_swapped_in_without_a_request_that_fails(service: str, folders: dict[str, str]) -> None:
    from actors.search_service import swap_index

    answers: list[SearchAnswer] = []
    failures: list[BaseException] = []
    ended = threading.Event()

    def ask(tool: str) -> None:
        async def scenario() -> None:
            asking = client()
            while not ended.is_set():
                try:
                    answers.append(await asking.search_index(SearchRequest(tool, "snapshot pump", 3, index="kb")))
                except RLClusterError as error:
                    failures.append(error)

        asyncio.run(scenario())

    threads = [threading.Thread(target=ask, args=(tool,)) for tool in ("bm25_search", "vector_search")]
    for thread in threads:
        thread.start()
    try:
        while len(answers) < 20:
            time.sleep(0.05)
        with pytest.raises(IndexFormatError, match="no complete index"):
            swap_index(APP, "kb", str(Path(folders["s1"]).parent))
        before = {answer.index_id for answer in answers}
        swapped = swap_index(APP, "kb", folders["s2"])
        after = len(answers)
        time.sleep(0.5)
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert before == {SearchIndex.open(folders["s1"], ()).index_id}
    assert swapped.index_id not in before
    # One answer of each tool may have been under way when the last replica switched.
    late = answers[after + len(threads) :]
    assert late
    assert {answer.index_id for answer in late} == {swapped.index_id}
    for answer in answers:
        word = "Snapshot 2" if answer.index_id == swapped.index_id else "Snapshot 1"
        assert all(hit.snippet.startswith(word) for hit in answer.hits if hit.doc_id != "hostile")
    swap_index(APP, "kb", folders["s1"])


def test_replica_that_starts_after_a_swap_has_the_new_snapshot(service: str, folders: dict[str, str]) -> None:
    from actors.search_service import swap_index

    swapped = swap_index(APP, "kb", folders["s2"])
    (victim,) = replica_processes("Bm25Replica")
    victim.kill()
    answer = asyncio.run(client().search_index(SearchRequest("bm25_search", "pump", 1)))
    assert answer.index_id == swapped.index_id
    swap_index(APP, "kb", folders["s1"])


def test_load_starts_a_second_replica_that_gives_the_same_answers(service: str, folders: dict[str, str]) -> None:
    from ray import serve

    from actors.search_client import ServeSearchClient
    from actors.search_service import start_search, stop_search

    app = "search-scaled"
    settings = ServiceSettings(
        SearchToolSettings(5, 10, ("vector_search",)), LIMITS, "127.0.0.1", SEARCH_PORT, min_replicas=1, max_replicas=2
    )
    start_search({"kb": folders["s1"]}, app, settings)

    def replicas() -> dict[str, int]:
        states = serve.status().applications[app].deployments["VectorReplica"].replica_states
        return {str(state): count for state, count in states.items() if count}

    def wait_until(reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 150
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.5)

    async def ask_until(enough: Callable[[int], bool]) -> list[SearchAnswer]:
        asking = [ServeSearchClient(app, CallLimits(60.0, 2, 4), "vector_search") for _ in range(4)]
        answers: list[SearchAnswer] = []

        async def caller(number: int) -> None:
            while not enough(len(answers)):
                answers.append(await asking[number % 4].search_index(SearchRequest("vector_search", "a pump", 5)))

        await asyncio.gather(*(caller(number) for number in range(32)))
        return answers

    stop = threading.Event()
    load = threading.Thread(target=lambda: asyncio.run(ask_until(lambda count: stop.is_set())), daemon=True)
    try:
        assert replicas() == {"RUNNING": 1}
        load.start()
        wait_until(lambda: sum(replicas().values()) == 2)
        stop.set()  # it starts sooner where nobody asks
        wait_until(lambda: replicas() == {"RUNNING": 2})
        scaled = replicas()
        found = asyncio.run(ask_until(lambda count: count >= 100))
    finally:
        stop.set()
        stop_search(app)
    assert scaled == {"RUNNING": 2}
    expected = SearchIndex.open(folders["s1"]).search("vector", "a pump", 5)
    assert {tuple(hit.doc_id for hit in answer.hits) for answer in found} == {tuple(hit.doc_id for hit in expected)}


def settings_of(*tools: str, **changes: Any) -> ServiceSettings:
    return ServiceSettings(SearchToolSettings(5, 10, tools), LIMITS, "127.0.0.1", SEARCH_PORT, **changes)


def damaged(folder: str, copy: Path) -> str:
    """A copy with one file of the same size and other content."""
    shutil.copytree(folder, copy)
    file = copy / "lexical" / "indices.csc.index.npy"
    content = bytearray(file.read_bytes())
    content[128:] = reversed(content[128:])
    file.write_bytes(content)
    return str(copy)


def with_embedder(embedder: Path, folder: Path) -> str:
    """An index that names the model in `embedder`, which is gone afterwards."""
    embedder.mkdir()
    settings = IndexSettings(parts=("vector",), embedder=str(embedder))
    SearchIndex.build(Corpus.from_documents("kb", documents(1)), settings, folder, embedder=HashEmbedder())
    embedder.rmdir()
    return str(folder)


def test_start_over_an_index_that_cannot_be_opened_ends_with_its_reason(
    service: str, folders: dict[str, str], tmp_path: Path
) -> None:
    from ray import serve

    from actors.search_service import start_search

    app = "search-broken"
    wrong: list[tuple[str, str, type[RLClusterError], str]] = [
        ("bm25_search", damaged(folders["s1"], tmp_path / "damaged"), IndexFormatError, "build again"),
        (
            "vector_search",
            with_embedder(tmp_path / "model", tmp_path / "kept"),
            ModelError,
            "model' is neither a folder",
        ),
    ]
    for tool, folder, kind, says in wrong:
        with pytest.raises(kind, match=says) as caught:
            start_search({"kb": folder}, app, settings_of(tool, start_timeout_s=240.0))
        assert "\n" not in str(caught.value)
        assert app not in serve.status().applications
    # The same name serves as soon as it is given what it can open.
    start_search({"kb": folders["s1"]}, app, settings_of("bm25_search"))
    assert serve.status().applications[app].status == "RUNNING"
    serve.delete(app)


def test_start_without_room_for_replicas_ends_with_its_deadline(service: str, folders: dict[str, str]) -> None:
    from ray import serve

    from actors.search_service import start_search

    with pytest.raises(DeadlineError, match=r"search\.start_timeout_s=4 s; are its replicas waiting for resources"):
        start_search(
            {"kb": folders["s1"]}, "search-late", settings_of("bm25_search", cpus_per_replica=1e4, start_timeout_s=4.0)
        )
    assert "search-late" not in serve.status().applications


def test_document_of_five_megabytes_and_an_empty_one_are_served(service: str, tmp_path: Path) -> None:
    from actors.search_client import ServeSearchClient
    from actors.search_service import start_search, stop_search

    big = "pump valve PRJ-4411-B " * 250_000
    corpus = Corpus.from_documents("kb", [Document("big", "Big", big), Document("empty", "", ""), *documents(1, 5)])
    SearchIndex.build(corpus, IndexSettings(parts=("lexical",)), tmp_path / "i")
    app = "search-big"
    start_search({"kb": str(tmp_path / "i")}, app, settings_of("bm25_search", "read_document"))
    try:
        asking = ServeSearchClient(app, LIMITS)
        hits = asyncio.run(asking.search_index(SearchRequest("bm25_search", "valve PRJ-4411-B", 5))).hits
        assert hits[0].doc_id == "big"
        assert "PRJ-4411-B" in hits[0].snippet
        assert "empty" not in {hit.doc_id for hit in hits}
        url = f"http://127.0.0.1:{SEARCH_PORT}/{app}/v1/documents"
        last = http(f"{url}/big?part=3000")[1]
        assert last["parts"] > 3000
        assert 0 < len(last["text"]) <= 16_384
        status, empty = http(f"{url}/empty")
        assert (status, empty["text"], empty["parts"]) == (200, "", 1)
    finally:
        stop_search(app)


def test_serve_entry_point_builds_serves_and_ends(tmp_path: Path) -> None:
    corpus = tmp_path / "kb.jsonl"
    corpus.write_text(
        "\n".join(
            json.dumps({"id": d.doc_id, "title": d.title, "text": d.text, "metadata": d.metadata}) for d in documents(1)
        )
    )
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "rl_cluster.serve", f"corpora={{kb: {corpus}}}", "tools=[bm25_search]"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HOME": str(tmp_path), "KB_TOKEN": "t0ken"}
    settings = ["search.port=8397", "search.token_env=KB_TOKEN"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, *settings], cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 240
        while "serving kb at" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        body = {"tool": "bm25_search", "query": "pump", "k": 1}
        assert http("http://127.0.0.1:8397/v1/search", body)[0] == 401
        request = urllib.request.Request(
            "http://127.0.0.1:8397/v1/search",
            json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": "Bearer t0ken"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.loads(answer.read())["hits"][0]["doc_id"] == "d000"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert "t0ken" not in log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
