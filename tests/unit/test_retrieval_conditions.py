"""Filters of a shape or size that a search should not carry are refused where it is asked, so that they meet no other request."""

from __future__ import annotations

from typing import Any

import pytest

from rl_cluster.errors import SearchRequestError
from rl_cluster.retrieval.conditions import MAX_VALUES, check_conditions


def nested(depth: int) -> Any:
    value: Any = "wiki"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (["kind"], "are a list"),
        ({"kind": nested(500)}, "has a list among its values"),
        ({"kind": {"gte": {"lt": 1}}}, "has a dict among its values"),
        ({"year": list(range(MAX_VALUES + 1))}, "has 1001 values"),
        ({"year": 10**5000}, "number of over 300 digits"),
        ({"kind": "x" * 5000}, "value of 5000 characters"),
        ({3: "wiki"}, "3 is no field"),
        ({f"f{number}": 1 for number in range(100)}, "name 100 fields"),
    ],
)
def test_check_conditions_wrong_shape_or_size_is_refused_in_one_sentence(filters: Any, said: str) -> None:
    with pytest.raises(SearchRequestError) as refused:
        check_conditions(filters)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"kind": "wiki"},
        {"kind": ["wiki", "mail"], "year": {"gte": 2020, "lt": 2024.5}},
        {"draft": False, "none": None},
        {"year": list(range(MAX_VALUES))},
    ],
)
def test_check_conditions_usual_ones_pass(filters: Any) -> None:
    check_conditions(filters)
