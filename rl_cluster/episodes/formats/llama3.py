"""The Llama 3 format: a reply that is one JSON object with "name" and "parameters"; the template describes the tools."""

from __future__ import annotations

import json

from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec, find_answer
from rl_cluster.episodes.formats.json_calls import read_json_call

_TAG = "<|python_tag|>"


class Format:
    """One call a reply. Text that starts like an object is a call, valid or not; other text may hold an answer."""

    uses_template_tools = True
    observation_role = "ipython"

    def instructions(self, tools: list[ToolSpec]) -> str:
        return ""

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        spoken = text.strip().removeprefix(_TAG).strip()
        if spoken.startswith("{"):
            return ParsedReply([read_json_call(spoken, "parameters", tools)])
        return ParsedReply(answer=find_answer(spoken))

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        return json.dumps({"name": name, "parameters": arguments})
