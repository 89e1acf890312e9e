"""The plain format, for models whose chat template knows no tools: one line a call, one line an answer.

bm25_search: words to find
vector_search(8): a description, eight results
answer: d12 d7 d33
"""

from __future__ import annotations

import re

from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec, check_arguments, find_answer
from rl_cluster.episodes.trajectory import ToolCall

_CALL = re.compile(r"^\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:\(\s*([^)]*?)\s*\))?\s*:\s*(.*?)\s*$")


class Format:
    """Calls and answers as lines; anything else in a reply is taken as thinking aloud and ignored."""

    uses_template_tools = False
    observation_role = "user"

    def instructions(self, tools: list[ToolSpec]) -> str:
        lines = [f"{tool.name}: QUERY {tool.description}" for tool in tools]
        return "Reply with one line:\n" + "\n".join(lines)

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        names = {tool.name for tool in tools}
        calls: list[ToolCall] = []
        for line in text.splitlines():
            match = _CALL.match(line)
            if match is None or match.group(1) == "answer":
                continue
            name, count, query = match.groups()
            if name not in names:
                if name.endswith("_search"):
                    calls.append(
                        ToolCall(name, {}, f"there is no tool {name[:40]!r}; use {' or '.join(sorted(names))}")
                    )
                continue
            arguments: dict[str, object] = {"query": query}
            if count:
                if not count.isdecimal() or len(count) > 9:
                    calls.append(ToolCall(name, arguments, f"{count[:20]!r} is not a number of results"))
                    continue
                arguments["k"] = int(count)
            if not query:
                calls.append(ToolCall(name, arguments, "the query is empty"))
                continue
            calls.append(check_arguments(name, arguments, tools))
        return ParsedReply(calls) if calls else ParsedReply(answer=find_answer(text))

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        count = f"({arguments['k']})" if "k" in arguments else ""
        return f"{name}{count}: {arguments['query']}"
