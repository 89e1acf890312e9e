"""The Hermes format of Qwen3 and others: JSON between <tool_call> tags; the chat template describes the tools."""

from __future__ import annotations

import json
import re

from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec, find_answer
from rl_cluster.episodes.formats.json_calls import end_of_json, read_json_call
from rl_cluster.episodes.formats.thinking import without_thinking

_CALL = re.compile(r"<tool_call>\s*(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_CLOSED = re.compile(r"\s*(?:</tool_call>|\Z)")


class Format:
    """Several calls may stand in one reply; a call cut off by the token limit is malformed, unless its JSON is whole."""

    uses_template_tools = True
    observation_role = "tool"

    def instructions(self, tools: list[ToolSpec]) -> str:
        return ""

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        spoken = without_thinking(text)
        calls, found = [], _CALL.search(spoken)
        while found is not None:
            end = _end_of_call(spoken, found.start(1))
            content = found[1] if end is None else spoken[found.start(1) : end]
            calls.append(read_json_call(content.strip(), ("arguments",), tools))
            found = _CALL.search(spoken, found.end() if end is None else end)
        return ParsedReply(calls) if calls else ParsedReply(answer=find_answer(spoken))

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def _end_of_call(text: str, start: int) -> int | None:
    """Where JSON that begins at `start` and is followed by the closing tag ends: such a tag inside a query is text."""
    end = end_of_json(text, start)
    return end if end is not None and _CLOSED.match(text, end) else None
