"""The HTTP interface over real indexes, without Ray: answers, errors with their statuses, access, metrics, documentation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.errors import ConfigError, ToolTimeoutError, ToolUnavailableError
from rl_cluster.service.access import token_digest
from rl_cluster.service.catalog import IndexCatalog
from rl_cluster.service.http_app import HttpSettings, build_app
from tests.helpers.small_index import DirectBackend, build_index

TOOLS = SearchToolSettings(5, 10, ("bm25_search", "read_document"))
TOKEN = "s3cret-token"
BASE = "http://127.0.0.1:8377"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("indexes")
    for number in (1, 2):
        build_index(root / f"s{number}", number)
    return root


@pytest.fixture
def backend(root: Path) -> DirectBackend:
    backend = DirectBackend(IndexCatalog(("lexical",)))
    backend.folders = {"kb": str(root / "s1"), "other": str(root / "s2")}
    backend.catalog.apply(backend.folders)
    return backend


@pytest.fixture
def client(backend: DirectBackend) -> Iterator[TestClient]:
    app = build_app(backend, HttpSettings(TOOLS, 5.0, "127.0.0.1"))
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def guarded(backend: DirectBackend) -> Iterator[TestClient]:
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    app = build_app(backend, HttpSettings(TOOLS, 5.0, "127.0.0.1", digest))
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        yield client


def search(client: TestClient, **body: object):
    return client.post("/v1/search", json={"tool": "bm25_search", "query": "pump", **body})


def test_search_gives_hits_and_the_index_they_came_from(client: TestClient) -> None:
    one, two = search(client, k=2).json(), search(client, k=2, index="other").json()
    assert len(one["hits"]) == 2
    assert set(one["hits"][0]) == {"doc_id", "title", "snippet", "score", "part"}
    listed = {found["name"]: found for found in client.get("/v1/indexes").json()["indexes"]}
    assert (one["index_id"], two["index_id"]) == (listed["kb"]["index_id"], listed["other"]["index_id"])
    assert listed["kb"]["num_documents"] == 61


def test_search_filters_and_excluded_are_kept(client: TestClient) -> None:
    found = search(client, k=100, filters={"kind": "wiki", "year": {"gte": 2005}}, excluded=["d005"]).json()["hits"]
    assert found
    assert all(int(hit["doc_id"][1:]) % 2 == 1 and hit["doc_id"] != "d005" for hit in found)


BAD = [
    ({"query": ""}, "The query is empty"),
    ({"query": "   "}, "The query is empty"),
    ({"query": "x" * 100_000}, "100000 characters"),
    ({"k": 0}, "k is 0"),
    ({"k": 10_000}, "k is 10000"),
    ({"k": "five"}, "k is refused"),
    ({"k": 2.5}, "k is refused"),
    ({"k": True}, "k is refused"),
    ({"query": 5}, "query is refused"),
    ({"tool": "grep"}, "There is no tool 'grep'"),
    ({"tool": "vector_search"}, "There is no tool 'vector_search' here; use one of bm25_search"),
    ({"index": "nope"}, "There is no index 'nope'; the indexes are: kb, other"),
    ({"filters": {"nope": 1}}, "There is no field 'nope'"),
    ({"filters": {"year": {"near": 1}}}, "has the bounds"),
    ({"filters": {"year": "2005"}}, "the field holds numbers"),
    ({"filters": [1]}, "filters is refused"),
    ({"excluded": [1]}, "excluded.0 is refused"),
    ({"surprise": 1}, "surprise is refused"),
    ({"timeout_s": -1}, "timeout_s is refused"),
]


@pytest.mark.parametrize(("body", "says"), BAD)
def test_search_wrong_request_is_422_with_a_sentence(client: TestClient, body: dict, says: str) -> None:
    answer = search(client, **body)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["type"] == "bad_request"
    assert says in error["message"]
    assert len(error["message"]) <= 500
    assert search(client).status_code == 200


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"tool": "bm25_search", "query": "\xff\xfe"}', 422),
        (b'{"tool": "bm25_search", "query": "\\ud800 half"}', 422),
        (b'{"tool": "bm25_search\\ud800", "query": "x"}', 422),
        (b'{"tool": "bm25_search", "query": "x", "\\udfff": 1}', 422),
        (b"not json", 422),
        (b"[]", 422),
        (b"", 422),
        (b"[" * 100_000, 422),
        (b'{"tool": "bm25_search", "query": "x", "k": ' + b"9" * 5000 + b"}", 422),
        (b'{"tool": "bm25_search", "query": "pump\\u0000 valve"}', 200),
    ],
)
def test_search_bytes_that_are_no_request_are_refused_and_nothing_stops(
    client: TestClient, content: bytes, status: int
) -> None:
    answer = client.post("/v1/search", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    json.loads(answer.content)
    assert search(client).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (b"not json", "application/json", "The body is no JSON: "),
        (b"[]", "application/json", "The body is no JSON object; send one, with content-type: application/json."),
        (b'{"tool": "bm25_search", "query": "x"}', "text/plain", "send one, with content-type: application/json."),
        (b"", "application/json", "The body is no JSON object; send one"),
        (b"null", "application/json", "The body is no JSON object; send one"),
        (b'{"query": "\xff"}', "application/json", "The body is no JSON that can be read; send UTF-8"),
        (b"[" * 100_000, "application/json", "The body is no JSON that can be read; send UTF-8"),
    ],
)
def test_search_body_that_is_no_object_is_told_apart(client: TestClient, content: bytes, kind: str, says: str) -> None:
    answer = client.post("/v1/search", content=content, headers={"content-type": kind})
    assert answer.status_code == 422
    assert says in answer.json()["error"]["message"]


def test_search_excluding_as_many_as_published_questions_do_is_answered(client: TestClient) -> None:
    ids = ["d000", *(f"a_collection_of_bright/{i:05d}_{i % 7}.txt" for i in range(11_224))]
    hits = search(client, k=100, excluded=ids).json()["hits"]
    assert hits
    assert "d000" not in {hit["doc_id"] for hit in hits}
    most = [f"another/document/{i:06d}" for i in range(100_000)]
    assert search(client, excluded=most).status_code == 200
    refused = search(client, excluded=[*most, "one more"])
    assert refused.status_code == 422
    assert "100000" in refused.json()["error"]["message"]


def test_search_body_that_is_too_large_or_of_unknown_size_is_refused(client: TestClient) -> None:
    assert search(client, query="x" * (9 << 20)).status_code == 413
    streamed = client.post("/v1/search", content=iter([b"{}"]), headers={"content-type": "application/json"})
    assert streamed.status_code == 411


def test_document_is_read_in_parts(client: TestClient) -> None:
    first = client.get("/v1/documents/hostile").json()
    assert (first["part"], first["parts"], first["start"]) == (1, 3, 0)
    assert "\x07" not in first["text"]
    last = client.get("/v1/documents/hostile", params={"part": 3}).json()
    assert last["start"] > first["end"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/documents/nope", 404),
        ("/v1/documents/d001?part=9", 404),
        ("/v1/documents/d001?part=0", 404),
        ("/v1/documents/d001?part=x", 422),
        ("/v1/documents/d001?index=nope", 404),
        ("/v1/documents/%00", 404),
        ("/v1/documents/%FF%FE", 404),
        ("/v1/documents/a/b", 404),
        ("/v1/nothing", 404),
    ],
)
def test_document_that_is_not_there_is_an_error_with_a_sentence(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(("failure", "status"), [(ToolUnavailableError("full"), 503), (ToolTimeoutError("late"), 504)])
def test_search_failing_service_has_its_status(
    client: TestClient, backend: DirectBackend, failure: Exception, status: int
) -> None:
    backend.failure = failure  # pyright: ignore[reportAttributeAccessIssue]
    answer = search(client)
    assert answer.status_code == status
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
    backend.failure = None
    assert search(client).status_code == 200


def test_search_bug_is_500_without_details(client: TestClient, backend: DirectBackend) -> None:
    backend.failure = ZeroDivisionError("secret path /x")  # pyright: ignore[reportAttributeAccessIssue]
    answer = search(client)
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_search_deadline_that_passes_is_504(client: TestClient) -> None:
    assert search(client, timeout_s=1e-9).status_code == 504


def test_health_with_one_tool_dead_is_503(client: TestClient, backend: DirectBackend) -> None:
    assert client.get("/healthz").status_code == 200
    backend.dead = ("bm25_search",)
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert "bm25_search" in answer.text


def test_token_is_asked_for_everywhere_but_health_and_documentation(guarded: TestClient) -> None:
    assert guarded.get("/healthz").status_code == 200
    assert guarded.get("/docs").status_code == 200
    assert guarded.get("/openapi.json").status_code == 200
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
    ):
        for path in ("/v1/indexes", "/metrics", "/v1/documents/d001"):
            answer = guarded.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert guarded.post("/mcp", json={}, headers=headers).status_code == 401
        assert guarded.post("/v1/indexes/kb", json={"folder": "/x"}, headers=headers).status_code == 401
    assert guarded.get("/v1/indexes", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_token_digest_of_a_variable_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCH_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"search\.token_env=SEARCH_TOKEN"):
        token_digest("SEARCH_TOKEN")
    monkeypatch.setenv("SEARCH_TOKEN", TOKEN)
    assert TOKEN not in str(token_digest("SEARCH_TOKEN"))
    assert token_digest(None) is None


def test_swap_changes_what_answers_and_a_broken_folder_changes_nothing(guarded: TestClient, root: Path) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    body = {"tool": "bm25_search", "query": "pump"}
    before = guarded.post("/v1/search", json=body, headers=headers).json()["index_id"]
    broken = guarded.post("/v1/indexes/kb", json={"folder": str(root)}, headers=headers)
    assert (broken.status_code, broken.json()["error"]["type"]) == (422, "bad_index")
    assert guarded.post("/v1/search", json=body, headers=headers).json()["index_id"] == before
    swapped = guarded.post("/v1/indexes/kb", json={"folder": str(root / "s2")}, headers=headers).json()
    assert swapped["index_id"] != before
    assert guarded.post("/v1/search", json=body, headers=headers).json()["index_id"] == swapped["index_id"]


def test_swap_without_a_token_is_forbidden(client: TestClient, root: Path) -> None:
    assert client.post("/v1/indexes/kb", json={"folder": str(root / "s2")}).status_code == 403


def test_metrics_count_requests_tools_and_errors(client: TestClient) -> None:
    search(client, k=3)
    search(client, query="")
    client.get("/v1/nothing")
    text = client.get("/metrics").text
    assert 'search_http_requests_total{route="/v1/search",status="200"} 1.0' in text
    assert 'search_http_requests_total{route="other",status="404"} 1.0' in text
    assert 'search_tool_calls_total{outcome="SearchRequestError",tool="bm25_search"} 1.0' in text
    assert 'search_hits_total{tool="bm25_search"} 3.0' in text


def test_openapi_names_every_route_and_its_errors(client: TestClient, guarded: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert {"/v1/search", "/v1/documents/{doc_id}", "/v1/indexes", "/v1/indexes/{name}", "/healthz", "/metrics"} <= set(
        document["paths"]
    )
    assert {"200", "422", "503", "504"} <= set(document["paths"]["/v1/search"]["post"]["responses"])
    assert "HTTPBearer" in guarded.get("/openapi.json").json()["components"]["securitySchemes"]
