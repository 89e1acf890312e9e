"""The Llama 3 format: JSON objects with "name" and "parameters"; the template describes the tools."""

from __future__ import annotations

import json
import re

from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec, find_answer
from rl_cluster.episodes.formats.json_calls import end_of_json, read_json_call
from rl_cluster.episodes.formats.thinking import without_thinking
from rl_cluster.episodes.trajectory import ToolCall

_CALL = re.compile(r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"(?:name|parameters|arguments)"\s*:')
"""How a call begins; other braces are text."""
_KEYS = ("parameters", "arguments")


class Format:
    """Calls one after another, with or without text, `;` or a python tag around them; without a call the text may hold an
    answer. What begins like a call and is none is a malformed one."""

    uses_template_tools = True
    observation_role = "ipython"

    def instructions(self, tools: list[ToolSpec]) -> str:
        return ""

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        text = without_thinking(text)
        calls: list[ToolCall] = []
        found = _CALL.search(text)
        while found is not None:
            # What begins like JSON and is none is one attempt up to the end.
            end = end_of_json(text, found.start()) or len(text)
            calls.append(read_json_call(text[found.start() : end], _KEYS, tools))
            found = _CALL.search(text, end)
        if not calls and text.strip().startswith("{"):
            calls.append(read_json_call(text.strip(), _KEYS, tools))
        return ParsedReply(calls) if calls else ParsedReply(answer=find_answer(text))

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        return json.dumps({"name": name, "parameters": arguments})
