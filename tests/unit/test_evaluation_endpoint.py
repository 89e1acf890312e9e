"""A chat endpoint as a system: conversations, and each way in which an endpoint goes wrong as one typed error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import ConfigError, EndpointError, Outcome
from rl_cluster.evaluation.players import endpoint as module
from rl_cluster.evaluation.players.endpoint import Endpoint
from rl_cluster.evaluation.records import record_of
from rl_cluster.evaluation.settings import Connection
from rl_cluster.evaluation.world import World
from tests.helpers.chat_server import Answer, ChatServer, chat_server, completion
from tests.helpers.small_world import pump_world

SECRET = "sk-very-secret-0123"


def connection(url: str, **changes: Any) -> Connection:
    values = {"url": url, "model": "big", "key_variable": "TEST_ENDPOINT_KEY", "timeout_s": 5.0, "max_retries": 2}
    values |= {"busy_wait_s": 0.05, "token_field": "max_tokens", "send_temperature": True}
    return Connection.model_validate({**values, "concurrency": 2, "native_tools": True, **changes})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ENDPOINT_KEY", SECRET)
    monkeypatch.setattr(module, "MAX_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return pump_world(tmp_path_factory.mktemp("pumps"))


def play(server: ChatServer, world: World, **changes: Any) -> Trajectory:
    async def episode() -> Trajectory:
        player = Endpoint(connection(server.url, **changes), temperature=0.5, max_tokens=64)
        try:
            return await player.play(world, world.tasks[0], 0)
        finally:
            await player.close()

    return asyncio.run(episode())


def check(url: str) -> None:
    async def ask() -> None:
        player = Endpoint(connection(url), 0.0, 64)
        try:
            await player.check()
        finally:
            await player.close()

    asyncio.run(ask())


def searcher(body: dict[str, Any]) -> Answer:
    """Searches once with the first tool, then hands in what it found."""
    observations = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    if not observations:
        return completion(calls=[("bm25_search", {"query": "north pump", "k": 2})])
    return completion("answer: " + " ".join(line.split(" | ")[0] for line in observations[-1].splitlines()))


def test_endpoint_several_native_calls_are_each_answered_by_a_message_of_their_own(world: World) -> None:
    seen: list[list[str]] = []

    def twice(body: dict[str, Any]) -> Answer:
        seen.append([m["content"] for m in body["messages"] if m["role"] == "tool"])
        if seen[-1]:
            return completion("answer: pumps-0")
        return completion(calls=[("bm25_search", {"query": "north pump", "k": 1}), ("no_such_tool", {})])

    with chat_server(twice) as server:
        played = play(server, world)
    assert seen == [[], played.turns[0].observations]
    first, second = seen[1]
    assert first.startswith("pumps-0")
    assert second.startswith("error: there is no tool 'no_such_tool'")


def test_endpoint_native_tools_searches_and_answers(world: World) -> None:
    with chat_server(searcher) as server:
        played = play(server, world)
    assert played.outcome is Outcome.FINISHED
    assert played.ranking[0] == "pumps-0"
    assert [len(turn.sampled_ids) for turn in played.turns] == [7, 7]
    assert server.bodies[0]["tools"][0]["function"]["name"] == "bm25_search"
    assert server.bodies[0]["max_tokens"] == 64
    assert server.bodies[1]["messages"][-1]["tool_call_id"] == "call-0"
    assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"


def test_endpoint_plain_format_explains_itself_in_the_prompt(world: World) -> None:
    replies = ["bm25_search(2): north pump", "answer: pumps-0"]
    with chat_server(lambda body: completion(replies[len(body["messages"]) // 2 - 1])) as server:
        played = play(server, world, native_tools=False)
    assert played.ranking == ["pumps-0"]
    assert "tools" not in server.bodies[0]
    assert "bm25_search: QUERY" in server.bodies[0]["messages"][0]["content"]


def test_endpoint_malformed_call_is_answered_in_the_conversation(world: World) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        if len(body["messages"]) == 2:
            return completion(calls=[("grep", {"q": 1})])
        assert "there is no tool 'grep'" in body["messages"][-1]["content"]
        return completion("answer: pumps-0")

    with chat_server(answer) as server:
        played = play(server, world)
    assert played.outcome is Outcome.FINISHED
    assert played.turns[0].tool_calls[0].error is not None


@pytest.mark.parametrize(
    "arguments", ['{"query": ' * 10_000, '{"query": "\\ud800"}', "[1]", '"q"', "{", {"query": "q"}]
)
def test_endpoint_call_whose_arguments_nothing_can_read_is_answered_in_the_conversation(
    world: World, arguments: Any
) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        status, content = completion(calls=[("bm25_search", {})])
        if len(body["messages"]) == 2:
            content["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = arguments
            return status, content
        assert "the call is not readable" in body["messages"][-1]["content"]
        return completion("answer: pumps-0")

    with chat_server(answer) as server:
        played = play(server, world)
    assert (played.outcome, record_of(played, world.tasks[0]).malformed_calls) == (Outcome.FINISHED, 1)


@pytest.mark.parametrize("native", [True, False])
def test_endpoint_half_a_character_in_a_reply_is_replaced_before_it_is_sent_back(world: World, native: bool) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        if len(body["messages"]) > 2:
            return completion("answer: pumps-0")
        status, content = completion("bm25_search(2): \ud800 pump")
        message = content["choices"][0]["message"]
        if native:
            function = {"name": "bm25_search", "arguments": '{"query": "\udfff pump \U0001f600", "k": 2}'}
            message["tool_calls"] = [{"id": "call-\ud800", "type": "function", "function": function}]
        return status, content

    with chat_server(answer) as server:
        played = play(server, world, native_tools=native)
    assert (played.outcome, played.turns[0].text) == (Outcome.FINISHED, "bm25_search(2): \ufffd pump")
    (call,) = played.turns[0].tool_calls
    assert call.arguments["query"] == ("\ufffd pump \U0001f600" if native else "\ufffd pump")
    said, answered = server.bodies[1]["messages"][2:]
    assert said["content"] == "bm25_search(2): \ufffd pump"
    assert [each["id"] for each in said.get("tool_calls", [])] == (["call-\ufffd"] if native else [])
    assert answered.get("tool_call_id") == ("call-\ufffd" if native else None)


@pytest.mark.parametrize("status", [429, 500])
def test_endpoint_that_recovers_is_asked_again(world: World, status: int) -> None:
    left = [status, status]

    def answer(body: dict[str, Any]) -> Answer:
        return (left.pop(), "later") if left else searcher(body)

    with chat_server(answer) as server:
        assert play(server, world).outcome is Outcome.FINISHED


def test_endpoint_that_keeps_failing_is_a_counted_loss(world: World) -> None:
    with chat_server(lambda body: (503, "no")) as server:
        played = play(server, world)
    assert played.outcome is Outcome.ENGINE_ERROR
    assert "answered 503 in each of 3 tries" in played.error
    assert len(server.bodies) == 3


def test_endpoint_that_stays_busy_is_waited_for_as_long_as_the_setting_says(world: World) -> None:
    with chat_server(lambda body: (429, "later")) as server:
        played = play(server, world)
    assert played.outcome is Outcome.ENGINE_ERROR
    assert "answered 429 for 0 s; lower concurrency, or set busy_wait_s to more than 0.05" in played.error
    assert len(server.bodies) == 6


def test_endpoint_that_is_busy_for_more_requests_than_it_may_fail_is_waited_for_and_the_time_counted(
    world: World,
) -> None:
    left = [429] * 4

    def answer(body: dict[str, Any]) -> Answer:
        return (left.pop(), "later") if left else searcher(body)

    with chat_server(answer) as server:
        played = play(server, world)
    assert played.outcome is Outcome.FINISHED
    assert record_of(played, world.tasks[0]).waited_s == pytest.approx(0.04)
    assert played.turns[1].times.queue_s == 0.0


def test_endpoint_whose_quota_is_used_up_is_not_waited_for(world: World) -> None:
    with chat_server(lambda _: (429, {"error": {"code": "insufficient_quota"}})) as server:
        assert "raise the quota" in play(server, world).error
    assert len(server.bodies) == 1


def test_endpoint_of_a_newer_model_is_sent_the_fields_that_it_takes(world: World) -> None:
    with chat_server(searcher) as server:
        play(server, world, token_field="max_completion_tokens", send_temperature=False)
        play(server, world)
    assert server.bodies[0]["max_completion_tokens"] == server.bodies[2]["max_tokens"] == 64
    assert {"max_tokens", "temperature"} & server.bodies[0].keys() == set()
    assert server.bodies[2]["temperature"] == 0.5


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "[" * 10_000,
        "[]",
        "{}",
        {"choices": []},
        {"choices": [{"message": {"content": 3}}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {"content": "answer: d1"}, "finish_reason": "stop"}]},  # counts no tokens
    ],
)
def test_endpoint_garbage_is_one_typed_error(body: Any) -> None:
    with chat_server(lambda _: (200, body)) as server, pytest.raises(EndpointError, match="is no chat completion"):
        check(server.url)


def test_endpoint_refusal_is_not_asked_again_and_never_shows_the_key() -> None:
    with chat_server(lambda _: (401, "bad key")) as server:
        with pytest.raises(EndpointError, match="answered 401") as caught:
            check(server.url)
        assert len(server.bodies) == 1
    assert SECRET not in str(caught.value)


def test_endpoint_unreachable_says_so() -> None:
    with pytest.raises(EndpointError, match="cannot be reached"):
        check("http://127.0.0.1:9/v1")


@pytest.mark.parametrize("url", ["http://host:abc/v1", "https:///v1", "http://[::1/v1"])
def test_endpoint_whose_address_is_none_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address") as caught:
        Endpoint(connection(url), 0.0, 64)
    assert url in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Too long.", "code": "context_length_exceeded"}},
        {
            "error": {
                "message": "This model's maximum context length is 256 tokens. However, you requested 300.",
                "code": 400,
            }
        },
    ],
)
def test_endpoint_whose_context_is_full_ends_the_episode_at_its_sequence_limit(world: World, body: Any) -> None:
    def answer(asked: dict[str, Any]) -> Answer:
        return searcher(asked) if len(asked["messages"]) == 2 else (400, body)

    with chat_server(answer) as server:
        played = play(server, world)
    assert (played.outcome, len(played.turns)) == (Outcome.SEQUENCE_LIMIT, 1)
    assert "the context of big has no room" in played.error
    assert "environment.max_turns" in played.error
    assert len(server.bodies) == 2


def test_endpoint_whose_context_has_no_room_for_a_greeting_is_one_error() -> None:
    too_long = {"error": {"message": "maximum context length is 4 tokens"}}
    with chat_server(lambda _: (400, too_long)) as server, pytest.raises(ConfigError, match="has no room"):
        check(server.url)


def test_endpoint_other_refusal_in_an_episode_is_a_counted_loss(world: World) -> None:
    with chat_server(lambda _: (400, {"error": {"message": "no such model"}})) as server:
        assert play(server, world).outcome is Outcome.ENGINE_ERROR


def test_endpoint_without_its_key_is_refused_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_ENDPOINT_KEY")
    with pytest.raises(ConfigError, match="key_variable=TEST_ENDPOINT_KEY"):
        Endpoint(connection("http://127.0.0.1:9/v1"), 0.0, 64)
