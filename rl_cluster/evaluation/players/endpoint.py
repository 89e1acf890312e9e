"""A bigger model behind an OpenAI-compatible chat endpoint: the comparison that the published study lacks.

Tools go out in the request where the endpoint knows them (`tools: native`), otherwise the plain format is explained in the
system prompt. The key comes from an environment variable and is never written anywhere. An endpoint that says "later" (429) is
waited for, and one that fails (5xx, no connection) asked again with growing pauses; everything else is one typed error. An episode that the model's
context has no room for is one that reached its sequence limit, as with a model of one's own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import uuid
from array import array
from dataclasses import dataclass, replace
from typing import Any

import httpx

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.formats import get_format
from rl_cluster.episodes.formats.base import ParsedReply, ToolFormat, ToolSpec, check_arguments, find_answer
from rl_cluster.episodes.formats.json_calls import read_json_object
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn, TurnTimes
from rl_cluster.errors import ConfigError, EndpointError, EngineError, Outcome, ToolTimeoutError, ToolUnavailableError
from rl_cluster.evaluation.settings import Connection
from rl_cluster.evaluation.world import World

UNKNOWN_ID = -1
"""Stands for each token that an endpoint counted, whose id it does not say."""
MAX_PAUSE_S = 30.0
_QUOTA = "insufficient_quota"
_HALF_CHARACTERS = re.compile("[\ud800-\udfff]")
_TOO_LONG = ("context_length_exceeded", "context length", "context size", "context window")


class _Native:
    """Tool calls as fields of the message; a final answer is a line of its text."""

    uses_template_tools = True
    observation_role = "tool"

    def instructions(self, tools: list[ToolSpec]) -> str:
        return "Search with the tools; then reply without a call."

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        return ParsedReply(answer=find_answer(text))

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        return json.dumps({"name": name, "arguments": arguments})


@dataclass(frozen=True)
class _Reply:
    message: dict[str, Any]
    finish_reason: str
    prompt_tokens: int
    sampled_tokens: int
    waited_s: float = 0.0


class Endpoint:
    """Raises ConfigError at once where the address is none or the variable of the key is not set."""

    def __init__(self, connection: Connection, temperature: float, max_tokens: int) -> None:
        self.connection = connection
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.concurrency = connection.concurrency
        _check_address(connection.url)
        headers = {}
        if connection.key_variable is not None:
            key = os.environ.get(connection.key_variable, "")
            if not key:
                raise ConfigError(
                    f"key_variable={connection.key_variable}: this environment variable is not set; set it to the endpoint's key."
                )
            headers["Authorization"] = f"Bearer {key}"
        self.http = httpx.AsyncClient(timeout=connection.timeout_s, headers=headers)
        self.tool_format: ToolFormat = _Native() if connection.native_tools else get_format("plain")

    async def check(self) -> None:
        """One small request before anything is measured. Raises EndpointError, and ConfigError where there is no room for it."""
        await self._ask([{"role": "user", "content": "Reply with: answer: ready"}], [])

    async def close(self) -> None:
        await self.http.aclose()

    async def play(self, world: World, task: Task, sample: int) -> Trajectory:
        trajectory = Trajectory(
            trajectory_id=uuid.uuid4().hex,
            task_id=task.task_id,
            group_id=f"{task.task_id}:{sample}",
            turns=[],
            outcome=Outcome.CANCELLED,
            index_id=world.index_id,
            started_at=time.time(),
        )
        try:
            await self._play(world, task, sample, trajectory)
        except ConfigError as error:  # what the conversation has grown to has no room in the model's context
            trajectory.outcome, trajectory.error = Outcome.SEQUENCE_LIMIT, str(error)
        except EngineError as error:
            trajectory.outcome, trajectory.error = Outcome.ENGINE_ERROR, str(error)
        except ToolTimeoutError as error:
            trajectory.outcome, trajectory.error = Outcome.TOOL_TIMEOUT, str(error)
        except ToolUnavailableError as error:
            trajectory.outcome, trajectory.error = Outcome.TOOL_UNAVAILABLE, str(error)
        trajectory.finished_at = time.time()
        return trajectory

    async def _play(self, world: World, task: Task, sample: int, trajectory: Trajectory) -> None:
        environment = world.episode(task, sample, self.tool_format)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": environment.system},
            {"role": "user", "content": environment.question},
        ]
        while True:
            started = time.time()
            reply = await self._ask(messages, environment.tools if self.connection.native_tools else [])
            text = reply.message.get("content") or ""
            turn = Turn(
                prompt_ids=array("i", [UNKNOWN_ID]) * reply.prompt_tokens,
                sampled_ids=array("i", [UNKNOWN_ID]) * reply.sampled_tokens,
                logprobs=array("f", [float("nan")]) * reply.sampled_tokens,
                weight_versions=array("i", [0]) * reply.sampled_tokens,
                finish_reason=reply.finish_reason,
                text=text,
                times=TurnTimes(queue_s=reply.waited_s, decode_s=time.time() - started - reply.waited_s),
                started_at=started,
            )
            trajectory.turns.append(turn)
            if reply.finish_reason == "length":
                trajectory.outcome = Outcome.TOKEN_LIMIT
                return
            asked = reply.message.get("tool_calls") or []
            parsed = self._parsed(text, asked, environment.tools)
            result = await environment.step(parsed)
            turn.tool_calls = result.calls
            if result.outcome is not None:
                trajectory.outcome, trajectory.ranking = result.outcome, result.ranking
                return
            turn.observations = result.observations
            messages += self._answered(reply.message, asked, result.observations)

    def _parsed(self, text: str, asked: list[Any], tools: list[ToolSpec]) -> ParsedReply:
        if not asked:
            return self.tool_format.parse(text, tools)
        return ParsedReply([_tool_call(call, tools) for call in asked])

    def _answered(self, message: dict[str, Any], asked: list[Any], observations: list[str]) -> list[dict[str, Any]]:
        """The conversation's next messages; each native call is answered by a message of its own."""
        said: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
        if not asked:
            return [said, {"role": "user", "content": "\n".join(observations)}]
        said["tool_calls"] = asked
        answers = [
            {"role": "tool", "tool_call_id": call["id"], "content": observation}
            for call, observation in zip(asked, observations, strict=True)
        ]
        return [said, *answers]

    async def _ask(self, messages: list[dict[str, Any]], tools: list[ToolSpec]) -> _Reply:
        connection = self.connection
        body: dict[str, Any] = {
            "model": connection.model,
            "messages": messages,
            connection.token_field: self.max_tokens,
        }
        if connection.send_temperature:
            body["temperature"] = self.temperature
        if tools:
            body["tools"] = [tool.as_json() for tool in tools]
        url = f"{connection.url.rstrip('/')}/chat/completions"
        failures, refusals, waited = 0, 0, 0.0
        while True:
            asked_to_wait, slow = 0.0, False
            try:
                response = await self.http.post(url, json=body)
            except httpx.HTTPError as error:
                slow = isinstance(error, httpx.ReadTimeout)
                said = f"it did not answer within {connection.timeout_s:g} s" if slow else "it cannot be reached"
                problem, busy = f"{said} ({type(error).__name__})", False
            else:
                if response.status_code == httpx.codes.OK:
                    return replace(_read(response, url), waited_s=waited)
                problem = f"it answered {response.status_code}"
                # A quota that is used up is not given back by waiting.
                spent = _QUOTA in response.text
                busy = response.status_code == httpx.codes.TOO_MANY_REQUESTS and not spent
                if _says_too_long(response):
                    raise ConfigError(
                        f"{url}: the context of {connection.model} has no room for an episode: {_excerpt(response, 200)}; lower "
                        "environment.max_turns, environment.k, search.snippet_words or the system's max_tokens, or choose a model with a "
                        "longer context."
                    )
                if not busy and response.status_code < 500:
                    mend = "raise the quota" if spent else "correct url, model or key"
                    raise EndpointError(f"{url}: {problem}: {_excerpt(response)}; {mend}.")
                asked_to_wait = _retry_after(response)
            if busy:
                pause = asked_to_wait or min(2.0**refusals, MAX_PAUSE_S)
                if waited + pause > connection.busy_wait_s:
                    raise EndpointError(
                        f"{url}: {problem} for {waited:.0f} s; lower concurrency, or set busy_wait_s to more than {connection.busy_wait_s:g}."
                    )
                refusals, waited = refusals + 1, waited + pause
            else:
                if failures == connection.max_retries:
                    late = f"set timeout_s to more than {connection.timeout_s:g}"
                    mend = f"check the endpoint, or {late if slow else 'raise max_retries'}"
                    raise EndpointError(f"{url}: {problem} in each of {failures + 1} tries; {mend}.")
                pause = min(asked_to_wait or 2.0**failures, MAX_PAUSE_S)
                failures += 1
            await asyncio.sleep(pause)


def _tool_call(call: Any, tools: list[ToolSpec]) -> ToolCall:
    try:
        name = str(call["function"]["name"])
        arguments = read_json_object(call["function"]["arguments"] or "{}")
    except (KeyError, TypeError):
        arguments, name = None, ""
    if arguments is None:
        return ToolCall("", {}, "the call is not readable; give a name and arguments as a JSON object")
    return check_arguments(name, arguments, tools)


def _read(response: httpx.Response, url: str) -> _Reply:
    """Raises EndpointError where the answer is not a chat completion."""
    try:
        answer = response.json()
        choice = _whole_characters(answer["choices"][0])
        message = choice["message"]
        text, calls = message.get("content"), message.get("tool_calls") or []
        if not (text is None or isinstance(text, str)) or any(not isinstance(call["id"], str) for call in calls):
            raise TypeError("content is no text or a call has no id")
        # An endpoint that does not count would be one without tokens and without cost.
        usage = answer["usage"]
        prompt, sampled = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        return _Reply(message, str(choice.get("finish_reason")), max(prompt, 0), max(sampled, 0))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise EndpointError(
            f"{url}: its answer is no chat completion ({type(error).__name__}): {_excerpt(response)}; is this an OpenAI-compatible endpoint?"
        ) from error


def _whole_characters(value: Any) -> Any:
    """JSON without lone surrogates: they have no UTF-8 form, and what an endpoint said is sent back to it and kept."""
    return json.loads(_HALF_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", json.dumps(value, ensure_ascii=False)))


def _check_address(url: str) -> None:
    try:
        host, problem = httpx.URL(url).host, "it names no host"
    except httpx.InvalidURL as error:
        host, problem = "", str(error)
    if not host:
        raise ConfigError(f"url={url} is no address ({problem}); write it as https://HOST:PORT/v1.")


def _says_too_long(response: httpx.Response) -> bool:
    """Whether a refusal is about the length of the conversation: OpenAI has a code for it, vLLM and others say it in words."""
    text = response.text.lower()
    refused = response.status_code in (httpx.codes.BAD_REQUEST, httpx.codes.REQUEST_ENTITY_TOO_LARGE)
    return refused and any(words in text for words in _TOO_LONG)


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the endpoint asks to wait; 0 where it names none."""
    try:
        return max(float(response.headers.get("Retry-After", 0.0)), 0.0)
    except ValueError:
        return 0.0


def _excerpt(response: httpx.Response, letters: int = 120) -> str:
    return repr(" ".join(response.text.split())[:letters])
