"""Advantages against the golden groups of the formula sheet, and their invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.algorithms.advantages import advantage_names, get_advantage
from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages
from rl_cluster.errors import ConfigError, LearnerError

GOLDEN = [
    ("group_based", {}, [1.024694, 0.439155, -0.146385, -1.317464], 0),
    ("group_based", {"normalize_std": False}, [0.875, 0.375, -0.125, -1.125], 0),
    ("rloo", {}, [1.166667, 0.5, -0.166667, -1.5], 0),
    ("rloo", {"normalize_std": False}, [1.166667, 0.5, -0.166667, -1.5], 0),
    ("opo", {}, [0.7, 0.2, -0.3, -1.3], 0),
    ("gpg", {}, [1.75, 0.75, -0.25, -2.25], 0),
    ("grpo_passk", {}, [0.585539, 0, 0, 0], 0),
    ("grpo_passk", {"normalize_std": False}, [0.5, 0, 0, 0], 0),
    ("reinforce_pp", {}, [1.612560, 0.519299, -0.573962, -2.760483], -0.136658),
    ("reinforce_pp_baseline", {}, [1.653795, 0.573766, -0.506264, -2.666323], -0.236256),
]
TURN_REWARDS = [[0.0, 0.5], [0.2, 0.1, 0.7], [0.4]]
TURN_GOLDEN = [
    ("group_based_per_turn", {}, [[-0.999995, 0.707104], [0, -0.707104, 0], [0.999995]]),
    ("group_based_per_turn", {"normalize_std": False}, [[-0.2, 0.2], [0, -0.2, 0], [0.2]]),
    ("monte_carlo", {}, [[0.5, 0.5], [1, 0.8, 0.7], [0.4]]),
    ("monte_carlo", {"gamma": 0.5}, [[0.25, 0.5], [0.425, 0.45, 0.7], [0.4]]),
    ("monte_carlo", {"whiten": True}, [[-0.664211, -0.664211], [1.549826, 0.664211, 0.221404], [-1.107018]]),
]
OVER_GROUPS = ["group_based", "group_based_per_turn", "rloo", "opo", "gpg", "grpo_passk", "salt"]
"""Advantages that are 0 for a group of equal rewards, whatever the rest of the batch is."""


def batch_of(groups: list[str], rewards: list[float], tokens: list[int] | None = None) -> EpisodeBatch:
    """One turn per episode; every episode takes a step of its own."""
    counts = tokens or [1] * len(groups)
    return EpisodeBatch(
        groups,
        np.array(rewards, dtype=np.float64),
        [[count] for count in counts],
        transitions=[[("step", index)] for index in range(len(groups))],
    )


def per_episode(advantages: TokenAdvantages) -> list[float]:
    """The value of each episode, which must be the same on all its tokens."""
    assert all((values == values[0]).all() for values in advantages)
    return [float(values[0]) for values in advantages]


def run(name: str, batch: EpisodeBatch, **chosen: object) -> TokenAdvantages:
    return get_advantage(name)(batch, AdvantageSettings(**chosen))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "chosen", "expected", "flat"), GOLDEN)
def test_advantage_golden_groups_match_formula_sheet(
    name: str, chosen: dict[str, object], expected: list[float], flat: float
) -> None:
    lengths = [2, 4, 3, 1, 1, 2, 1, 2]
    result = run(name, batch_of(list("aaaabbbb"), [1, 0.5, 0, -1, 0.2, 0.2, 0.2, 0.2], lengths), **chosen)
    assert [len(values) for values in result] == lengths
    np.testing.assert_allclose(per_episode(result), [*expected, *[flat] * 4], atol=5e-7)


@pytest.mark.parametrize(("name", "chosen", "expected"), TURN_GOLDEN)
def test_advantage_golden_turns_match_formula_sheet(
    name: str, chosen: dict[str, object], expected: list[list[float]]
) -> None:
    tokens = [[1 + turn for turn in range(len(turns))] for turns in TURN_REWARDS]
    batch = EpisodeBatch(["g"] * 3, np.array([sum(turns) for turns in TURN_REWARDS]), tokens, TURN_REWARDS)
    for values, counts, turns in zip(run(name, batch, **chosen), tokens, expected, strict=True):
        np.testing.assert_allclose(values, np.repeat(turns, counts), atol=5e-7)


def test_monte_carlo_scalar_reward_sits_on_the_last_turn() -> None:
    batch = EpisodeBatch(["g"], np.array([0.8]), [[2, 1]])
    assert run("monte_carlo", batch, gamma=0.5)[0].tolist() == [0.4, 0.4, 0.8]


def test_group_based_per_turn_scalar_rewards_fall_back_to_group_based() -> None:
    batch = batch_of(list("gg"), [1.0, 0.0], [3, 2])
    for turn, whole in zip(run("group_based_per_turn", batch), run("group_based", batch), strict=True):
        assert (turn == whole).all()


def test_salt_golden_shared_step_turns_neutral() -> None:
    batch = EpisodeBatch(
        ["g"] * 3, np.array([1, 0, 0.25]), [[1, 2]] * 3, transitions=[["x", "b"], ["x", "c"], ["d", "e"]]
    )
    result = run("salt", batch, normalize_std=False)
    expected = [[0.083333, 0.583333], [0.083333, -0.416667], [-0.166667, -0.166667]]
    for values, steps in zip(result, expected, strict=True):
        np.testing.assert_allclose(values, np.repeat(steps, [1, 2]), atol=5e-7)


def test_salt_equal_steps_of_two_groups_are_not_merged() -> None:
    batch = EpisodeBatch(
        list("gghh"), np.array([1.0, 0.0, 0.0, 0.0]), [[1]] * 4, transitions=[["x"], ["y"], ["x"], ["x"]]
    )
    assert per_episode(run("salt", batch, normalize_std=False)) == [0.5, -0.5, 0.0, 0.0]


def test_salt_without_transitions_or_with_unknown_base_says_so() -> None:
    with pytest.raises(LearnerError, match="needs the transitions"):
        run("salt", EpisodeBatch(["g"], np.zeros(1), [[1]]))
    with pytest.raises(ConfigError, match="base='gpg' is no base of salt"):
        run("salt", batch_of(["g"], [0.0]), base="gpg")


def test_reinforce_pp_reward_reaches_tokens_before_the_last_observation() -> None:
    """A return that is reset at tool output leaves all turns but the last without credit."""
    several = EpisodeBatch(list("gh"), np.array([1.0, 0.0]), [[2, 3], [1, 1]])
    result = run("reinforce_pp", several)
    assert len(set(result[0].tolist())) == 1
    assert result[0][0] > 0 > result[1][0]


def test_reinforce_pp_divergence_is_a_cost_of_the_tokens_up_to_it() -> None:
    gaps = [np.array([0.0, 1.0, 0.0]), np.zeros(3)]
    batch = EpisodeBatch(list("gg"), np.array([1.0, 1.0]), [[3], [3]], kl_rewards=gaps)
    first, second = run("reinforce_pp", batch, kl_beta=0.5)
    assert first[0] == first[1] < first[2] == second[0]
    no_cost = run("reinforce_pp", batch)
    assert all((values == 0).all() for values in no_cost)


def test_reinforce_pp_discount_counts_sampled_tokens() -> None:
    batch = EpisodeBatch(["g"], np.array([1.0]), [[2, 1]])
    values = run("reinforce_pp", batch, gamma=0.5)[0]
    raw = np.array([0.25, 0.5, 1.0])
    np.testing.assert_allclose(values, (raw - raw.mean()) / raw.std(ddof=1), rtol=1e-6)


def test_advantage_binary_rewards_match_m_grpo_golden() -> None:
    result = run("group_based", batch_of(list("gggg"), [1, 0, 0, 1]), epsilon=1e-12)
    np.testing.assert_allclose(per_episode(result), [0.866025, -0.866025, -0.866025, 0.866025], atol=5e-7)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_advantages_shuffled_batch_is_the_shuffled_result(data: st.DataObject) -> None:
    """Groups are by id, whatever the order (invariant 7). Drawing a batch takes longer than all advantages of it."""
    episodes = data.draw(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from([-1.0, 0.0, 0.1, 0.2, 0.3, 1.0]), st.integers(1, 3)),
            max_size=12,
        )
    )
    order = data.draw(st.permutations(range(len(episodes))))
    shuffled = [episodes[i] for i in order]
    as_drawn, moved = (
        batch_of(*([list(column) for column in zip(*batch, strict=True)] or [[], []])) for batch in (episodes, shuffled)
    )
    for name in advantage_names():
        plain = run(name, as_drawn)
        assert all(np.isfinite(values).all() for values in plain), name
        assert [values.tolist() for values in run(name, moved)] == [plain[i].tolist() for i in order], name


@pytest.mark.parametrize("name", OVER_GROUPS)
@settings(max_examples=100, deadline=None)
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_advantage_equal_rewards_are_exactly_zero(name: str, reward: float, size: int) -> None:
    result = run(name, batch_of(["g"] * size + ["other"], [reward] * size + [reward + 1]))
    assert per_episode(result) == [0.0] * (size + 1)


@pytest.mark.parametrize("name", advantage_names())
def test_advantage_all_rewards_equal_is_no_nan(name: str) -> None:
    result = run(name, batch_of(list("gghh"), [0.5] * 4, [1, 2, 3, 4]))
    expected = 0.5 if name == "monte_carlo" else 0.0
    assert per_episode(result) == [expected] * 4


@pytest.mark.parametrize("name", advantage_names())
def test_advantage_episode_without_tokens_gets_an_empty_array(name: str) -> None:
    batch = EpisodeBatch(list("gg"), np.array([1.0, -1.0]), [[2, 1], []], transitions=[["x", "y"], []])
    result = run(name, batch)
    assert [len(values) for values in result] == [3, 0]
    assert np.isfinite(result[0]).all()


def test_grpo_passk_tie_for_best_gives_zero() -> None:
    assert per_episode(run("grpo_passk", batch_of(list("ggg"), [1, 1, 0]))) == [0.0] * 3


def test_get_advantage_unknown_name_names_choices() -> None:
    with pytest.raises(ConfigError, match="gpg, group_based, group_based_per_turn, grpo_passk"):
        get_advantage("gropu_based")


def test_episode_batch_reward_not_finite_raises() -> None:
    with pytest.raises(LearnerError, match="'g' has reward nan"):
        batch_of(["f", "g"], [0.0, float("nan")])
    with pytest.raises(LearnerError, match="'g' has reward nan"):
        EpisodeBatch(["g"], np.zeros(1), [[1, 1]], turn_rewards=[[0.0, float("nan")]])


@pytest.mark.parametrize("name", OVER_GROUPS)
def test_advantage_rewards_equal_but_for_rounding_have_no_signal(name: str) -> None:
    rewards = [[0.1 + 0.2, 0.3, 1.0, 0.0], [0.3, 0.3, 1.0, 0.0]]
    rounded, exact = (
        run(name, EpisodeBatch(list("gghh"), np.array(values), [[1]] * 4, transitions=[["x"], ["y"], ["x"], ["y"]]))
        for values in rewards
    )
    assert per_episode(rounded) == per_episode(exact)


def test_episode_batch_divergence_of_another_length_raises() -> None:
    for length in (1, 2):
        with pytest.raises(LearnerError, match=f"'a' has 3 sampled tokens but {length} kl_rewards"):
            EpisodeBatch(["a"], np.zeros(1), [[1, 2]], kl_rewards=[np.zeros(length)])
    with pytest.raises(LearnerError, match="'a' has a turn of -1 tokens"):
        EpisodeBatch(["a"], np.zeros(1), [[2, -1]])


def test_episode_batch_unequal_lengths_raise() -> None:
    with pytest.raises(LearnerError, match="different lengths"):
        EpisodeBatch(["a"], np.zeros(2), [[1]])
    with pytest.raises(LearnerError, match="has 2 turns but 1 turn_rewards"):
        EpisodeBatch(["a"], np.zeros(1), [[1, 1]], turn_rewards=[[0.5]])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("epsilon", 0.0), ("epsilon", math.nan), ("gamma", 0.0), ("gamma", 1.5), ("kl_beta", -0.1), ("kl_beta", math.inf)],
)
def test_advantage_settings_number_out_of_range_is_refused(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}={value} is no "):
        AdvantageSettings(**{setting: value})  # type: ignore[arg-type]
