"""The shape of filters, checked where a search is asked: light enough for a process that owns no index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_cluster.errors import SearchRequestError

MAX_FIELDS = 64
MAX_VALUES = 1000
"""Of one condition: each takes a look into the field's values."""
MAX_CHARACTERS = 4096
_MAX_DIGITS_BITS = 1024


def check_conditions(filters: Any) -> None:
    """Raises SearchRequestError for what is no mapping of fields to conditions, or larger than a search should carry.

    Fields and kinds of values are checked by the index, which knows its own.
    """
    if not isinstance(filters, Mapping):
        raise SearchRequestError(f"The filters are a {type(filters).__name__}; give an object of field: condition.")
    if len(filters) > MAX_FIELDS:
        raise SearchRequestError(f"The filters name {len(filters)} fields; give at most {MAX_FIELDS}.")
    for field, condition in filters.items():
        if not isinstance(field, str) or len(field) > MAX_CHARACTERS:
            raise SearchRequestError(f"{repr(field)[:80]} is no field to filter by; give its name.")
        if isinstance(condition, Mapping):
            values = list(condition.values())
        elif isinstance(condition, (list, tuple, set, frozenset)):
            values = list(condition)
        else:
            values = [condition]
        if len(values) > MAX_VALUES:
            raise SearchRequestError(
                f"The filter on {field[:80]!r} has {len(values)} values; give at most {MAX_VALUES}."
            )
        for value in values:
            _check_value(field, value)


def _check_value(field: str, value: Any) -> None:
    if isinstance(value, str):
        if len(value) > MAX_CHARACTERS:
            raise SearchRequestError(
                f"The filter on {field[:80]!r} has a value of {len(value)} characters; give at most {MAX_CHARACTERS}."
            )
    elif isinstance(value, int):
        if value.bit_length() > _MAX_DIGITS_BITS:
            raise SearchRequestError(
                f"The filter on {field[:80]!r} has a number of over 300 digits; give a smaller one."
            )
    elif not (value is None or isinstance(value, float)):
        raise SearchRequestError(
            f"The filter on {field[:80]!r} has a {type(value).__name__} among its values; give texts, numbers or truth values."
        )
