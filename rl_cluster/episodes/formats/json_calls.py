"""Reading one JSON tool call, which the JSON formats share."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import msgspec

from rl_cluster.episodes.formats.base import ToolSpec, check_arguments
from rl_cluster.episodes.trajectory import ToolCall


def read_json(text: str) -> Any:
    """The JSON value that a text is. Raises JSONDecodeError where it is none, and ValueError, OverflowError or RecursionError where neither
    tools nor the journal can take it."""
    value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    msgspec.msgpack.encode(value)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def end_of_json(text: str, start: int) -> int | None:
    """Where the JSON value that begins at `start` ends; None where there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def read_json_call(text: str, arguments_keys: tuple[str, ...], tools: list[ToolSpec]) -> ToolCall:
    """A call written as {"name": ..., KEY: {...}} with the first of the keys that it has; malformed text becomes a call with an `error`."""
    try:
        value = read_json(text)
    except json.JSONDecodeError as error:
        return ToolCall("", {}, f"the call is not valid JSON ({error.msg} at character {error.pos})")
    except (ValueError, OverflowError, RecursionError):
        return ToolCall(
            "", {}, "the call holds half a character, NaN, a number that is too long, or too deep a nesting"
        )
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", {}, 'the call must be an object with a "name"')
    arguments = next((value[key] for key in arguments_keys if key in value), {})
    return check_arguments(value["name"], arguments, tools)


def read_json_object(text: str) -> dict[str, object] | None:
    """The JSON object that a text is, or None where it is none that tools and the journal can take."""
    try:
        value = read_json(text)
    except (ValueError, OverflowError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
