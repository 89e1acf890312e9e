"""The XML format of Qwen3-Coder: a function tag with one tag per parameter; the chat template describes the tools."""

from __future__ import annotations

import json
import re

from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec, check_arguments, find_answer
from rl_cluster.episodes.formats.json_calls import read_json, read_json_object
from rl_cluster.episodes.formats.thinking import without_thinking
from rl_cluster.episodes.trajectory import ToolCall

_FUNCTION = re.compile(r"<function=([^<>\n]*)>(.*?)(</function>|(?=<function=)|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>(.*?)(</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


class Format:
    """Several calls may stand in one reply; a call cut off by the token limit is malformed."""

    uses_template_tools = True
    observation_role = "tool"

    def instructions(self, tools: list[ToolSpec]) -> str:
        return ""

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        spoken = without_thinking(text)
        calls = [_read_call(name, body, end, tools) for name, body, end in _FUNCTION.findall(spoken)]
        if not calls and "<tool_call>" in spoken:
            calls = [ToolCall("", {}, "the call names no function; write <function=NAME> inside <tool_call>")]
        return ParsedReply(calls) if calls else ParsedReply(answer=find_answer(spoken))

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in texts.items())
        return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _read_call(name: str, body: str, end: str, tools: list[ToolSpec]) -> ToolCall:
    name = name.strip()
    arguments: dict[str, object] = {}
    closed = bool(end)
    types = {
        key: schema.get("type")
        for tool in tools
        if tool.name == name
        for key, schema in tool.parameters["properties"].items()
    }
    for key, value, close in _PARAMETER.findall(body):
        closed = closed and bool(close)
        key, value = key.strip(), value.removeprefix("\n").removesuffix("\n")
        if types.get(key) == "integer":
            number = value.strip()
            if not number.removeprefix("-").isdecimal() or len(number) > 9:
                return ToolCall(name, arguments, f"the argument {key!r} must be a whole number, not {number[:20]!r}")
            arguments[key] = int(number)
        elif types.get(key) == "object":
            found = read_json_object(value)
            if found is None:
                return ToolCall(name, arguments, f"the argument {key!r} must be a JSON object, not {value[:20]!r}")
            arguments[key] = found
        elif types.get(key) in ("number", "boolean", "array"):
            try:
                arguments[key] = read_json(value)
            except (ValueError, OverflowError, RecursionError):
                return ToolCall(name, arguments, f"the argument {key!r} must be JSON, not {value[:20]!r}")
        else:
            arguments[key] = value
    if "</parameter>" in _PARAMETER.sub("", body):
        return ToolCall(name, arguments, "a </parameter> closes no parameter; write none inside a value")
    if not closed:
        return ToolCall(name, arguments, "the call is cut off; close every <parameter=...> and <function=...>")
    return check_arguments(name, arguments, tools)
