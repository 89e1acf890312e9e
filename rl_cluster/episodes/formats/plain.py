"""The plain format, for models whose chat template knows no tools: one line a call, one line an answer.

bm25_search: words to find
vector_search(8): a description, eight results
answer: d12 d7 d33

The text is the tool's required argument, the number its integer one (results of a search, the part of a document). A tool
that takes filters has them as a JSON object in the same brackets: `bm25_search(8, {"year": 2024}): words`.
"""

from __future__ import annotations

import json
import re

from rl_cluster.episodes.formats.base import ParsedReply, ToolSpec, check_arguments, find_answer
from rl_cluster.episodes.formats.json_calls import end_of_json, read_json_object
from rl_cluster.episodes.formats.thinking import without_thinking
from rl_cluster.episodes.trajectory import ToolCall

# The brackets end where a colon follows, since a filter may hold a bracket of its own. No two parts of it can take the same
# blanks: a reply of blanks alone would otherwise hold up all episodes of a worker.
_CALL = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)(?:\s*\(([^)]*(?:\)(?!\s*:)[^)]*)*)\))?\s*:(.*)", re.DOTALL)

# JSON says itself where it ends, whatever its strings hold.
_FILTERED = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\(([^(){}]*)(?=\{)")
_AFTER_FILTERS = re.compile(r"\s*\)\s*:(.*)", re.DOTALL)


class Format:
    """Calls and answers as lines; anything else in a reply is taken as thinking aloud and ignored."""

    uses_template_tools = False
    observation_role = "user"

    def instructions(self, tools: list[ToolSpec]) -> str:
        lines = [line for tool in tools for line in _lines(tool)]
        return "Reply with one line:\n" + "\n".join(lines)

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        text = without_thinking(text)
        by_name = {tool.name: tool for tool in tools}
        calls: list[ToolCall] = []
        for line in text.splitlines():
            name, inside, argument = _read_line(line)
            if name in ("", "answer"):
                continue
            if name not in by_name:
                if name.endswith("_search"):
                    calls.append(
                        ToolCall(name, {}, f"there is no tool {name[:40]!r}; use {' or '.join(sorted(by_name))}")
                    )
                continue
            text_key, number_key = _keys(by_name[name])
            arguments: dict[str, object] = {text_key: argument}
            error = _read_brackets(inside, number_key, arguments)
            if error is None and not argument:
                error = f"the {text_key} is empty"
            if error is not None:
                calls.append(ToolCall(name, arguments, error))
                continue
            calls.append(check_arguments(name, arguments, tools))
        return ParsedReply(calls) if calls else ParsedReply(answer=find_answer(text))

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        inside = [str(value) for value in arguments.values() if isinstance(value, int)]
        inside += [json.dumps(value) for value in arguments.values() if isinstance(value, dict)]
        text = next(value for value in arguments.values() if isinstance(value, str))
        brackets = f"({', '.join(inside)})" if inside else ""
        return f"{name}{brackets}: {' '.join(text.splitlines())}"


def _read_line(line: str) -> tuple[str, str, str]:
    """The name of a call, what stands in its brackets, and its text; three times nothing where a line is no call."""
    filtered = _FILTERED.match(line)
    end = end_of_json(line, filtered.end()) if filtered else None
    after = _AFTER_FILTERS.match(line, end) if end is not None else None
    if filtered and after:
        return filtered[1], line[filtered.start(2) : end].strip(), after[1].strip()
    match = _CALL.match(line)
    return (match[1], (match[2] or "").strip(), match[3].strip()) if match else ("", "", "")


def _lines(tool: ToolSpec) -> list[str]:
    text_key, _ = _keys(tool)
    lines = [f"{tool.name}: {'QUERY' if text_key == 'query' else 'ID'} {tool.description}"]
    filters = tool.parameters["properties"].get("filters")
    if filters is not None:
        lines.append(f'{tool.name}({{"FIELD": VALUE}}): QUERY with {filters["description"]}')
    return lines


def _keys(tool: ToolSpec) -> tuple[str, str | None]:
    """The names of the argument that is written as text and of the one that is written as a number, where there is one."""
    properties = tool.parameters["properties"]
    number = next((key for key, schema in properties.items() if schema.get("type") == "integer"), None)
    return tool.parameters["required"][0], number


def _read_brackets(inside: str, number_key: str | None, arguments: dict[str, object]) -> str | None:
    """Adds to `arguments` what stands in the brackets of a call; returns what is wrong with it."""
    count, brace, rest = inside.partition("{")
    if brace:
        filters = read_json_object(brace + rest)
        if filters is None:
            return "the filters are not a JSON object"
        arguments["filters"] = filters
        count = count.strip().removesuffix(",").strip()
    if count:
        if number_key is None:
            return f"{count[:20]!r} in the brackets is not known here"
        if not count.isdecimal() or len(count) > 9:
            return f"{count[:20]!r} is not a number of {'results' if number_key == 'k' else 'a part'}"
        arguments[number_key] = int(count)
    return None
