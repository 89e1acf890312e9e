"""The interface of a tool-call format, and the tools' own description."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_cluster.episodes.trajectory import ToolCall


@dataclass(frozen=True)
class ToolSpec:
    """A tool as models are told of it. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The OpenAI layout that chat templates take."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


@dataclass(frozen=True)
class ParsedReply:
    """What a reply asks for: tool calls (malformed ones carry `error`), or else a final answer's text, or neither."""

    calls: list[ToolCall] = field(default_factory=list)
    answer: str | None = None


class ToolFormat(Protocol):
    """How one family of models writes tool calls. The text of documents and tools is never given to `parse`."""

    uses_template_tools: bool
    observation_role: str

    def instructions(self, tools: list[ToolSpec]) -> str:
        """What the system prompt must add so that the model knows the format; empty where the template says it."""
        ...

    def parse(self, text: str, tools: list[ToolSpec]) -> ParsedReply:
        """Reads a reply that the policy sampled."""
        ...

    def write_call(self, name: str, arguments: dict[str, object]) -> str:
        """A reply that makes one call, as a demonstration would write it."""
        ...


def find_answer(text: str) -> str | None:
    """The text after the last line that starts with `answer:`, case-insensitively; None when there is none."""
    found = None
    for line in text.splitlines():
        head, separator, rest = line.strip().partition(":")
        if separator and head.strip().lower() == "answer":
            found = rest.strip()
    return found


_TYPES: dict[Any, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def check_arguments(name: str, arguments: object, tools: list[ToolSpec]) -> ToolCall:
    """A call checked against the tool's schema; its `error` says in one sentence how to mend it."""
    by_name = {tool.name: tool for tool in tools}
    if name not in by_name:
        return ToolCall(name, {}, f"there is no tool {name[:40]!r}; use one of {', '.join(by_name)}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, "the arguments must be an object")
    schema = by_name[name].parameters
    for required in schema.get("required", []):
        if required not in arguments:
            return ToolCall(name, dict(arguments), f"the argument {required!r} is missing")
    for key, value in arguments.items():
        if key not in schema["properties"]:
            return ToolCall(name, dict(arguments), f"there is no argument {str(key)[:40]!r}")
        expected = _TYPES.get(schema["properties"][key].get("type"))
        if expected is None:  # any value, or a choice of types
            continue
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            return ToolCall(name, dict(arguments), f"the argument {key!r} must be of type {expected[-1].__name__}")
    return ToolCall(name, dict(arguments))
