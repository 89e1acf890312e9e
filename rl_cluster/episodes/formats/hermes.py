"""The Hermes format of Qwen3 and others: JSON between <tool_call> tags; the chat template describes the tools."""

from __future__ import annotations

import json
import re

from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec, find_answer
from rl_cluster.episodes.formats.json_calls import read_json_call
from rl_cluster.episodes.formats.thinking import without_thinking

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class Format:
    """Several calls may stand in one reply; a call cut off by the token limit is malformed."""

    uses_template_tools = True
    observation_role = "tool"

    def instructions(self, tools: list[ToolSpec]) -> str:
        return ""

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        spoken = without_thinking(text)
        calls = [read_json_call(match.strip(), ("arguments",), tools) for match in _CALL.findall(spoken)]
        return ParsedReply(calls) if calls else ParsedReply(answer=find_answer(spoken))

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
