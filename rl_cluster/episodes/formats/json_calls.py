"""Reading one JSON tool call, which the JSON formats share."""

from __future__ import annotations

import json

import msgspec

from rl_cluster.episodes.formats.base import ToolSpec, check_arguments
from rl_cluster.episodes.trajectory import ToolCall


def read_json_call(text: str, arguments_keys: tuple[str, ...], tools: list[ToolSpec]) -> ToolCall:
    """A call written as {"name": ..., KEY: {...}} with the first of the keys that it has; malformed text becomes a call with an `error`."""
    try:
        value = json.loads(text)
        msgspec.msgpack.encode(value)  # refuses what neither tools nor the journal can take
    except json.JSONDecodeError as error:
        return ToolCall("", {}, f"the call is not valid JSON ({error.msg} at character {error.pos})")
    except (ValueError, OverflowError, RecursionError):
        return ToolCall("", {}, "the call holds half a character, a number that is too long, or too deep a nesting")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", {}, 'the call must be an object with a "name"')
    arguments = next((value[key] for key in arguments_keys if key in value), {})
    return check_arguments(value["name"], arguments, tools)


def read_json_object(text: str) -> dict[str, object] | None:
    """The JSON object that a text is, or None where it is none that tools and the journal can take."""
    try:
        value = json.loads(text)
        msgspec.msgpack.encode(value)
    except (ValueError, OverflowError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
