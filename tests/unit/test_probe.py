"""Whether an engine runs the learner's weights, by the log-probs of a fixed sequence (invariant 8)."""

from __future__ import annotations

import math

import pytest

from rl_cluster.errors import ProbeMismatchError
from rl_cluster.learning.weight_version import Probe, verify_probe

PROBE = Probe(tuple(range(7)), (-1.0, -2.0, -3.0, -4.0, -5.0, -6.0))


def changed(place: int, value: float) -> list[float]:
    found = list(PROBE.logprobs)
    found[place] = value
    return found


def test_verify_probe_small_differences_pass_and_the_largest_is_told() -> None:
    assert verify_probe(PROBE, changed(3, -4.0005), 1e-3) == pytest.approx(5e-4)


@pytest.mark.parametrize("place", [0, 3, 5])
@pytest.mark.parametrize("value", [math.nan, -math.inf, -9.0])
def test_verify_probe_one_token_that_differs_is_refused_wherever_it_stands(place: int, value: float) -> None:
    with pytest.raises(ProbeMismatchError, match="Engine and learner differ by"):
        verify_probe(PROBE, changed(place, value), 1e-3)


def test_verify_probe_learner_without_a_number_is_refused() -> None:
    with pytest.raises(ProbeMismatchError, match="differ by inf"):
        verify_probe(Probe(PROBE.token_ids, tuple(changed(4, math.nan))), list(PROBE.logprobs), 1e-3)


def test_verify_probe_other_number_of_tokens_is_refused() -> None:
    with pytest.raises(ProbeMismatchError, match="scored 5 probe tokens, the learner 6"):
        verify_probe(PROBE, [-1.0] * 5, 1e-3)
