"""The episodes of a group that are trained."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_cluster.scheduling.selection import most_varied


@pytest.mark.parametrize(
    ("rewards", "count", "chosen"),
    [
        ([0.5, 0.0, 1.0, 0.5], 2, [1, 2]),
        ([0.0, 0.0, 0.0, 1.0], 2, [0, 3]),
        ([1.0, 0.9, 0.0, 0.8, 0.1], 4, [0, 1, 2, 4]),
        ([0.3, 0.3, 0.3, 0.3], 2, [0, 1]),
        ([0.3, -1.0], 4, [0, 1]),
        ([0.0, 0.0, 1e-7, 1e-7], 2, [0, 3]),
    ],
)
def test_most_varied_keeps_the_ends(rewards: list[float], count: int, chosen: list[int]) -> None:
    assert most_varied(rewards, count) == chosen


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=8), st.integers(2, 5))
def test_most_varied_has_the_largest_variance_of_all_choices(rewards: list[float], count: int) -> None:
    count = min(count, len(rewards))
    chosen = most_varied(rewards, count)
    assert len(set(chosen)) == count
    largest = max(np.var(values) for values in combinations(rewards, count))
    assert np.var([rewards[place] for place in chosen]) == pytest.approx(largest, abs=1e-9)
