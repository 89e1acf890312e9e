"""The MCP endpoint, asked by the protocol's own client and byte by byte."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from mcp.client.client import Client
from starlette.testclient import TestClient

from rl_cluster.environments.hits import parse_documents
from rl_cluster.environments.search_tools import SearchToolSettings, tool_specs
from rl_cluster.service.catalog import IndexCatalog
from rl_cluster.service.http_app import HttpSettings, build_app
from tests.helpers.small_index import DirectBackend, build_index

TOOLS = SearchToolSettings(5, 10, ("bm25_search", "read_document"), ("kind", "year"))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory):
    backend = DirectBackend(IndexCatalog(("lexical",)))
    backend.catalog.apply({"kb": build_index(tmp_path_factory.mktemp("index") / "i")})
    return lambda: build_app(backend, HttpSettings(TOOLS, 5.0, "127.0.0.1"))


@pytest.fixture(scope="module")
def address(app) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app(), port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
    yield f"http://127.0.0.1:{port}/mcp"
    server.should_exit = True
    thread.join(5)


def text_of(result: Any) -> str:
    return result.content[0].text


def test_mcp_client_finds_the_tools_that_agents_are_trained_on(address: str) -> None:
    async def scenario() -> None:
        async with Client(address) as client:
            listed = (await client.list_tools()).tools
            expected = tool_specs(TOOLS)
            assert [(t.name, t.description, t.input_schema) for t in listed] == [
                (spec.name, spec.description, spec.parameters) for spec in expected
            ]

    asyncio.run(scenario())


def test_mcp_calls_give_what_an_agent_would_see(address: str) -> None:
    async def scenario() -> None:
        async with Client(address) as client:
            found = await client.call_tool("bm25_search", {"query": "pump", "k": 3, "filters": {"kind": "wiki"}})
            hits = parse_documents(text_of(found))
            assert not found.is_error
            assert len(hits) == 3
            assert all(int(hit.doc_id[1:]) % 2 for hit in hits)
            read = await client.call_tool("read_document", {"doc_id": "hostile", "part": 2})
            assert text_of(read).startswith("hostile | evil")
            assert "part 2 of 3: " in text_of(read)
            assert "\n" not in text_of(read)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("bm25_search", {"query": ""}, "The query is empty"),
        ("bm25_search", {}, "'query' is missing"),
        ("bm25_search", {"query": "x", "k": 0}, "k must be 1 to 10"),
        ("bm25_search", {"query": "x", "filters": {"nope": 1}}, "no field 'nope'"),
        ("bm25_search", {"query": "x", "filters": "kind"}, "must be of type dict"),
        ("vector_search", {"query": "x"}, "there is no tool 'vector_search'"),
        ("read_document", {"doc_id": "nope"}, "There is no document 'nope'"),
        ("read_document", {"doc_id": "d001", "part": 0}, "part must be 1 or more"),
    ],
)
def test_mcp_wrong_call_is_an_error_in_the_result(address: str, name: str, arguments: dict, says: str) -> None:
    async def scenario() -> None:
        async with Client(address) as client:
            answer = await client.call_tool(name, arguments)
            assert answer.is_error
            assert says in text_of(answer)

    asyncio.run(scenario())


def test_mcp_initialize_and_ping_by_hand(app) -> None:
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    with TestClient(app(), base_url="http://127.0.0.1:8377") as client:
        parameters = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        opened = client.post(
            "/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters}, headers=headers
        ).json()
        assert opened["result"]["protocolVersion"] == "2025-06-18"
        assert "tools" in opened["result"]["capabilities"]
        ping = client.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "ping"}, headers=headers).json()
        assert ping["result"] == {}
        assert client.post("/mcp", content=b"garbage", headers=headers).status_code == 400
        foreign = client.post("/mcp", json={}, headers={**headers, "host": "evil.example"})
        assert foreign.status_code in (403, 421)
