"""Advantages against the golden groups of the formula sheet, and their invariances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.algorithms.advantages import advantage_names, get_advantage
from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch
from rl_cluster.errors import ConfigError, LearnerError

GOLDEN = [
    ("group_based", True, [1.024694, 0.439155, -0.146385, -1.317464]),
    ("group_based", False, [0.875, 0.375, -0.125, -1.125]),
    ("rloo", True, [1.166667, 0.5, -0.166667, -1.5]),
    ("rloo", False, [1.166667, 0.5, -0.166667, -1.5]),
    ("grpo_passk", True, [0.585539, 0, 0, 0]),
    ("grpo_passk", False, [0.5, 0, 0, 0]),
]


def batch_of(groups: list[str], rewards: list[float]) -> EpisodeBatch:
    return EpisodeBatch(groups, np.array(rewards, dtype=np.float64), np.ones(len(groups), dtype=np.int64))


@pytest.mark.parametrize(("name", "normalize_std", "expected"), GOLDEN)
def test_advantage_golden_groups_match_formula_sheet(name: str, normalize_std: bool, expected: list[float]) -> None:
    batch = EpisodeBatch(
        list("aaaabbbb"),
        np.array([1, 0.5, 0, -1, 0.2, 0.2, 0.2, 0.2]),
        np.array([2, 4, 3, 1, 1, 2, 1, 2]),
    )
    result = get_advantage(name)(batch, AdvantageSettings(normalize_std=normalize_std))
    assert result.dtype == np.float64
    np.testing.assert_allclose(result[:4], expected, atol=5e-7)
    assert (result[4:] == 0.0).all()


def test_advantage_binary_rewards_match_m_grpo_golden() -> None:
    result = get_advantage("group_based")(batch_of(list("gggg"), [1, 0, 0, 1]), AdvantageSettings(epsilon=1e-12))
    np.testing.assert_allclose(result, [0.866025, -0.866025, -0.866025, 0.866025], atol=5e-7)


@pytest.mark.parametrize("name", advantage_names())
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_advantage_shuffled_batch_is_the_shuffled_result(name: str, data: st.DataObject) -> None:
    """Invariant 7: groups are by id, whatever the order (known failure 31)."""
    episodes = data.draw(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([-1.0, 0.0, 0.1, 0.2, 0.3, 1.0])), max_size=12)
    )
    order = data.draw(st.permutations(range(len(episodes))))
    function = get_advantage(name)
    plain = function(batch_of([g for g, _ in episodes], [r for _, r in episodes]), AdvantageSettings())
    shuffled = [episodes[i] for i in order]
    moved = function(batch_of([g for g, _ in shuffled], [r for _, r in shuffled]), AdvantageSettings())
    assert np.isfinite(plain).all()
    assert (moved == plain[list(order)]).all()


@pytest.mark.parametrize("name", advantage_names())
@settings(max_examples=100, deadline=None)
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_advantage_equal_rewards_are_exactly_zero(name: str, reward: float, size: int) -> None:
    result = get_advantage(name)(
        batch_of(["g"] * size + ["other"], [reward] * size + [reward + 1]), AdvantageSettings()
    )
    assert (result == 0.0).all()


def test_grpo_passk_tie_for_best_gives_zero() -> None:
    result = get_advantage("grpo_passk")(batch_of(list("ggg"), [1, 1, 0]), AdvantageSettings())
    assert (result == 0.0).all()


def test_get_advantage_unknown_name_names_choices() -> None:
    with pytest.raises(ConfigError, match="group_based, grpo_passk, rloo"):
        get_advantage("gropu_based")


def test_episode_batch_reward_not_finite_raises() -> None:
    with pytest.raises(LearnerError, match="'g' has reward nan"):
        batch_of(["f", "g"], [0.0, float("nan")])


def test_episode_batch_unequal_lengths_raise() -> None:
    with pytest.raises(LearnerError, match="different lengths"):
        EpisodeBatch(["a"], np.zeros(2), np.ones(1, dtype=np.int64))
