"""An endpoint of one's own, played by a small HTTP server on localhost: what is sent, what is read, and how it fails."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from rl_cluster.environments.hits import FoundDocument
from rl_cluster.errors import ConfigError, SearchRequestError, ToolTimeoutError, ToolUnavailableError
from rl_cluster.service import http_search
from rl_cluster.service.http_mapping import HttpSearchSettings
from rl_cluster.service.http_search import HttpSearchClient, endpoint_id, http_search_settings, try_tool
from tests.helpers.configuration import load_config

HITS = [("b", 2.0), ("c", 1.0), ("a", 2.0), ("d", 0.5)]
ELASTIC_ANSWER = {
    "hits": {
        "hits": [
            {
                "_id": doc_id,
                "_score": score,
                "_source": {"title": f"Title\x00 {doc_id}", "text": "word " * 500},
                "highlight": {"text": [f"the\x1b[1m pump\n of {doc_id}"]},
            }
            for doc_id, score in HITS
        ]
    }
}
JSON_ANSWER = {"hits": [{"doc_id": d, "title": d.upper(), "snippet": f"text {d}", "score": s} for d, s in HITS]}


@dataclass
class Endpoint:
    """Answers with `answers` in turn, the last one for ever; a callable makes the answer."""

    answers: list[Any] = field(default_factory=lambda: [JSON_ANSWER])
    requests: list[tuple[str, str, Any, dict[str, str]]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, request.path_qs, body, dict(request.headers)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            made: Any = answer(request)
            answer = await made
        return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer)


Play = Callable[..., Any]


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def play(endpoint: Endpoint) -> Play:
    """Runs one call of a client against the endpoint."""

    def run(kind: str, call: Callable[[HttpSearchClient], Any], **changes: Any) -> Any:
        async def scenario() -> Any:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", endpoint.handle)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            client = HttpSearchClient(replace(shipped(kind, f"http://127.0.0.1:{port}"), **changes))
            try:
                return await call(client)
            finally:
                await client.close()
                await runner.cleanup()

        return asyncio.run(scenario())

    return run


def shipped(kind: str, base: str) -> HttpSearchSettings:
    """The settings of the shipped configuration."""
    path = "kb/_search" if kind == "elasticsearch" else "v1/search"
    document = "kb/_doc" if kind == "elasticsearch" else "v1/documents"
    overrides = [f"search={kind}", f"search.external.url={base}/{path}", "search.timeout_s=5.0"]
    overrides.append(f"search.external.document_url='{base}/{document}/{{id}}'")
    return http_search_settings(load_config(overrides).search)


def test_elasticsearch_query_carries_filters_and_excluded(endpoint: Endpoint, play: Play) -> None:
    endpoint.answers = [ELASTIC_ANSWER]
    filters = {"kind": "wiki", "team": ["a", "b"], "year": {"gte": 2020}}
    play("elasticsearch", lambda client: client.search("bm25_search", 'say "pump" {k}', 3, ("c",), filters))
    method, path, body, _ = endpoint.requests[0]
    assert (method, path) == ("POST", "/kb/_search")
    assert body["size"] == 3
    asked = body["query"]["bool"]
    assert asked["must"] == [{"multi_match": {"query": 'say "pump" {k}', "fields": ["title", "text"]}}]
    assert asked["filter"] == [
        {"term": {"kind": "wiki"}},
        {"terms": {"team": ["a", "b"]}},
        {"range": {"year": {"gte": 2020}}},
    ]
    assert asked["must_not"] == [{"ids": {"values": ["c"]}}]


def test_elasticsearch_answer_is_cleaned_ordered_and_cut(endpoint: Endpoint, play: Play) -> None:
    endpoint.answers = [ELASTIC_ANSWER]
    found = play("elasticsearch", lambda client: client.search("vector_search", "pump", 2, ("c",)))
    assert endpoint.requests[0][2]["query"]["bool"]["must"] == [
        {"semantic": {"field": "semantic_text", "query": "pump"}}
    ]
    assert found == [
        FoundDocument("a", "Title a", "the[1m pump of a"),
        FoundDocument("b", "Title b", "the[1m pump of b"),
    ]


def test_http_json_template_is_filled_with_values(endpoint: Endpoint, play: Play) -> None:
    found = play("http_json", lambda client: client.search("bm25_search", "pump", 3, ("b",), {"year": 1}))
    assert endpoint.requests[0][2] == {
        "tool": "bm25_search",
        "query": "pump",
        "k": 3,
        "excluded": ["b"],
        "filters": {"year": 1},
    }
    assert [hit.doc_id for hit in found] == ["a", "c", "d"]


def test_http_json_passages_of_one_document_count_once_with_the_best(endpoint: Endpoint, play: Play) -> None:
    passages = [("d", 3.0), ("d", 9.0), ("e", 5.0), ("d", 4.0)]
    endpoint.answers = [
        {"hits": [{"doc_id": i, "title": "", "snippet": f"{i} {score}", "score": score} for i, score in passages]}
    ]
    found = play("http_json", lambda client: client.search("bm25_search", "pump", 3, ()))
    assert [(hit.doc_id, hit.snippet) for hit in found] == [("d", "d 9.0"), ("e", "e 5.0")]


def test_http_json_endpoint_that_cannot_exclude_is_asked_for_more(endpoint: Endpoint, play: Play) -> None:
    tools = {"bm25_search": {"q": "{query}", "n": "{k}", "note": "for {tool}: {query}"}}
    found = play("http_json", lambda client: client.search("bm25_search", "pump", 2, ("a", "b")), tools=tools)
    assert endpoint.requests[0][2] == {"q": "pump", "n": 4, "note": "for bm25_search: pump"}
    assert [hit.doc_id for hit in found] == ["c", "d"]


@pytest.mark.parametrize(("number", "asked", "shown"), [(2, 4, ["c", "d"]), (3, 4, ["d"]), (11_224, 4, ["d"])])
def test_http_json_endpoint_that_cannot_exclude_is_asked_for_no_more_than_it_gives(
    endpoint: Endpoint, play: Play, number: int, asked: int, shown: list[str]
) -> None:
    """With more excluded documents than it gives results, a search may show fewer than k, and is never refused."""
    tools = {"bm25_search": {"q": "{query}", "n": "{k}"}}
    excluded = tuple(("a", "b", "c", *map(str, range(20_000)))[:number])
    found = play("http_json", lambda client: client.search("bm25_search", "pump", 2, excluded), tools=tools, max_k=4)
    assert endpoint.requests[0][2]["n"] == asked
    assert [hit.doc_id for hit in found] == shown


def test_token_is_sent_and_never_shown(endpoint: Endpoint, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint.answers = [web.json_response({}, status=401)]
    with pytest.raises(ToolUnavailableError, match="status 401") as caught:
        play(
            "elasticsearch",
            lambda client: client.search("bm25_search", "x", 1, ()),
            token="t0ken",
            token_scheme="ApiKey",
        )
    assert endpoint.requests[0][3]["Authorization"] == "ApiKey t0ken"
    assert "t0ken" not in str(caught.value)
    assert len(endpoint.requests) == 1  # a refusal is not tried again


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_status_that_may_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint, play: Play, status: int
) -> None:
    monkeypatch.setattr(http_search, "_FIRST_PAUSE_S", 0.01)

    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Retry-After": "0"})

    endpoint.answers = [busy, busy, JSON_ANSWER]
    assert play("http_json", lambda client: client.search("bm25_search", "x", 1, ()))
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize("status", [429, 500, 503, 400, 404, 302])
def test_status_that_stays_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint, play: Play, status: int
) -> None:
    monkeypatch.setattr(http_search, "_FIRST_PAUSE_S", 0.01)

    async def failing(_: web.Request) -> web.Response:
        return web.Response(status=status, text="no\x00pe " * 1000, headers={"Location": "http://127.0.0.1:1/"})

    endpoint.answers = [failing]
    with pytest.raises(ToolUnavailableError, match=f"status {status}") as caught:
        play("http_json", lambda client: client.search("bm25_search", "x", 1, ()), retries=1)
    assert len(endpoint.requests) == (2 if status in (429, 503) else 1)
    assert len(str(caught.value)) < 400


REFUSALS = [
    (
        422,
        {"error": {"type": "bad_request", "message": "The filter on 'year' is wrong."}},
        "The filter on 'year' is wrong",
    ),
    (422, {"detail": [{"loc": ["body", "k"], "msg": "too large"}]}, "too large"),
    (422, "nothing", "no reason is given"),
    (400, {"error": {"root_cause": [{"reason": "failed to parse date"}], "reason": "all shards failed"}}, "parse date"),
    (400, {"error": "unknown\x00 field " + "x" * 5000}, "unknown field"),
]


@pytest.mark.parametrize(("status", "body", "says"), REFUSALS)
def test_refusal_of_the_request_itself_is_the_callers_fault(
    endpoint: Endpoint, play: Play, status: int, body: Any, says: str
) -> None:
    endpoint.answers = [web.json_response(body, status=status)]
    with pytest.raises(SearchRequestError, match=says) as caught:
        play("http_json", lambda client: client.search("bm25_search", "x", 1, ()))
    assert len(endpoint.requests) == 1
    assert len(str(caught.value)) < 300
    assert "\x00" not in str(caught.value)


def test_refusal_at_the_start_of_a_run_names_the_template(endpoint: Endpoint, play: Play) -> None:
    endpoint.answers = [web.json_response({"error": {"reason": "unknown query [fuzy]"}}, status=400)]
    with pytest.raises(ConfigError) as caught:
        play("elasticsearch", lambda client: try_tool(client, "bm25_search"))
    assert str(caught.value).startswith(
        "search.external.tools.bm25_search: The search was refused as wrong: unknown query [fuzy]; correct it to what http://127.0.0.1:"
    )


@pytest.mark.parametrize("status", [401, 403, 404, 413, 429, 500])
def test_refusal_with_an_error_of_another_kind_stays_unavailable(endpoint: Endpoint, play: Play, status: int) -> None:
    async def refusing(_: web.Request) -> web.Response:
        return web.json_response({"error": {"type": "no", "message": "not now"}}, status=status)

    endpoint.answers = [refusing]
    with pytest.raises(ToolUnavailableError, match=f"status {status}"):
        play("http_json", lambda client: client.search("bm25_search", "x", 1, ()), retries=0)


@pytest.mark.parametrize(
    "highlight", [{}, {"highlight": None}, {"highlight": {"text": None}}, {"highlight": {"text": []}}]
)
def test_elasticsearch_hit_without_highlight_shows_the_part_that_matches(
    endpoint: Endpoint, play: Play, highlight: dict[str, Any]
) -> None:
    text = f"{'filler ' * 300}restart of the pump RB-12 {'filler ' * 300}"
    hit = {"_id": "a", "_score": 1.0, "_source": {"title": "T", "text": text}, **highlight}
    endpoint.answers = [{"hits": {"hits": [hit]}}]
    (found,) = play("elasticsearch", lambda client: client.search("bm25_search", "pump RB-12", 1, ()), snippet_words=8)
    assert "pump RB-12" in found.snippet
    assert len(found.snippet.split()) == 8


def test_retry_after_longer_than_the_deadline_is_a_timeout(endpoint: Endpoint, play: Play) -> None:
    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "3600"})

    endpoint.answers = [busy]
    started = time.monotonic()
    with pytest.raises((ToolTimeoutError, ToolUnavailableError)):
        play("http_json", lambda client: client.search("bm25_search", "x", 1, ()), timeout_s=0.5, retries=9)
    assert time.monotonic() - started < 4


@pytest.mark.slow
def test_endpoint_that_never_answers_is_a_timeout(endpoint: Endpoint, play: Play) -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(3)
        return web.Response()

    endpoint.answers = [silent]
    with pytest.raises(ToolTimeoutError, match=r"did not answer within 0\.3 s"):
        play("http_json", lambda client: client.search("bm25_search", "x", 1, ()), timeout_s=0.3)


GARBAGE = [
    b"",
    b"\xff\xfe",
    b"<html>",
    b"[" * 100_000,
    b"[]",
    b"{}",
    b'{"hits": 3}',
    b'{"hits": [3]}',
    b'{"hits": [{"doc_id": null, "snippet": "x"}]}',
    b'{"hits": [{"doc_id": "a", "snippet": 7}]}',
]


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage_is_unavailable(endpoint: Endpoint, play: Play, content: bytes) -> None:
    async def garbage(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type="application/json")

    endpoint.answers = [garbage]
    with pytest.raises(ToolUnavailableError):
        play("http_json", lambda client: client.search("bm25_search", "x", 1, ()))
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("doc_id", ["a | b\nforged", "x" * 513, " a", ""])
def test_id_that_breaks_the_lines_of_results_is_unavailable_and_named(
    endpoint: Endpoint, play: Play, doc_id: str
) -> None:
    """No observation shows it: a document's text must not be able to write a result of its own."""
    endpoint.answers = [{"hits": [{"doc_id": doc_id, "title": "t", "snippet": "s", "score": 1.0}]}]
    with pytest.raises(
        ToolUnavailableError, match=r"search\.external does not fit: at 'doc_id' of a hit stands"
    ) as caught:
        play("http_json", lambda client: client.search("bm25_search", "pump", 3, ()))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_answer_without_end_is_cut_off(endpoint: Endpoint, play: Play) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        for _ in range(40):
            await stream.write(b" " * (1 << 20))
        return stream

    endpoint.answers = [endless]
    with pytest.raises(ToolUnavailableError, match="more than"):
        play("http_json", lambda client: client.search("bm25_search", "x", 1, ()), retries=0)


def test_endpoint_that_is_down_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def scenario() -> None:
        client = HttpSearchClient(replace(shipped("http_json", f"http://127.0.0.1:{port}"), retries=1))
        try:
            await client.search("bm25_search", "x", 1, ())
        finally:
            await client.close()

    with pytest.raises(ToolUnavailableError, match="cannot be reached"):
        asyncio.run(scenario())


@pytest.mark.parametrize("query", ["", "   ", "x" * 100_000])
def test_wrong_query_is_the_callers_fault_and_not_sent(endpoint: Endpoint, play: Play, query: str) -> None:
    with pytest.raises(SearchRequestError):
        play("http_json", lambda client: client.search("bm25_search", query, 1, ()))
    assert endpoint.requests == []


def test_odd_characters_in_a_query_are_replaced(endpoint: Endpoint, play: Play) -> None:
    play("http_json", lambda client: client.search("bm25_search", "a\0b \ud800", 1, ()))
    assert endpoint.requests[0][2]["query"] == "a b ?"


def test_document_is_read_in_parts(endpoint: Endpoint, play: Play) -> None:
    text = " ".join(f"Sentence {i} ends." for i in range(200))
    endpoint.answers = [{"_id": "a/b", "_source": {"title": "T", "text": text}}]
    part = play("elasticsearch", lambda client: client.read("a/b", 2, ()))
    assert endpoint.requests[0][:2] == ("GET", "/kb/_doc/a%2Fb")
    assert (part.doc_id, part.title, part.part, part.parts) == ("a/b", "T", 2, 4)
    with pytest.raises(SearchRequestError, match="must not be shown"):
        play("elasticsearch", lambda client: client.read("a/b", 1, ("a/b",)))
    endpoint.answers = [web.json_response({"found": False}, status=404)]
    with pytest.raises(SearchRequestError, match="no document"):
        play("elasticsearch", lambda client: client.read("zz", 1, ()))


def test_settings_token_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KB_TOKEN", raising=False)
    overrides = ["search=elasticsearch", "search.external.url=http://x/_search", "search.external.token_env=KB_TOKEN"]
    search = load_config(overrides).search
    with pytest.raises(ConfigError, match="KB_TOKEN"):
        http_search_settings(search)
    monkeypatch.setenv("KB_TOKEN", "t0ken")
    assert http_search_settings(search).token == "t0ken"
    assert "t0ken" not in json.dumps(search.model_dump(mode="json"))
    assert endpoint_id(search).startswith("external-")
