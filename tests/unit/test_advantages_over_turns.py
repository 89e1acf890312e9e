"""Advantages that look at turns or steps, on batches of several groups, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rl_cluster.algorithms.advantages import get_advantage
from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages

TURN_GROUPS = list("abaabb")
TURN_REWARDS = [[1.0, 0.5], [10.0, 4.0, 8.0], [0.0, 0.1, 0.3], [0.5], [14.0, 4.0], [12.0]]
"""Two groups far apart, their episodes mixed; only one episode of each has a third turn."""

CENTRED = [[0.5, 0.2], [-2.0, 0.0, 0.0], [-0.5, -0.2, 0.0], [0.0], [2.0, 0.0], [0.0]]
"""Minus the mean of the turn within its group: 0.5 and 0.3 in a, 12 and 4 in b."""

SPREAD = [[0.5, 0.02**0.5 * 2], [2.0, 1.0, 1.0], [0.5, 0.02**0.5 * 2, 1.0], [0.5], [2.0, 1.0], [2.0]]
"""The standard deviation (ddof 1) of the same rewards; 1 where the advantage is 0 without it."""

RETURNS = {1.0: [[1.5, 0.5, 0.5], [4.0, 4.0, 2.0, 2.0], [-1.0, 0.25]]}
RETURNS[0.5] = [[1.125, 0.25, 0.5], [1.25, 2.5, 1.0, 2.0], [-1.125, 0.25]]
"""By discount, of the turns in `returns_batch`."""

STEP_GROUPS = list("ghghghgh")
STEP_REWARDS = [1.0, 2.0, 0.0, 0.0, 0.6, 0.0, 0.4, 0.0]
STEPS = [["x", "p"], ["x"], ["x", "q"], ["q", "x"], ["x", "q"], ["x", "p"], ["r", "q"], ["r"]]
"""g takes `x` three times, with 0.5, -0.5 and 0.1, and `q` three times; h takes `x` three times too."""

G_X, G_Q, H_X = 0.1 / 3, -0.5 / 3, 0.5 / 3
MERGED = [[G_X, 0.5], [H_X], [G_X, G_Q], [-0.5, H_X], [G_X, G_Q], [H_X, -0.5], [-0.1, G_Q], [-0.5]]
"""Rewards minus the group's mean of 0.5, averaged over the copies of a step."""

STEP_STD = {"g": (0.52 / 3) ** 0.5, "h": 1.0}
ORDERS = [[7, 6, 5, 4, 3, 2, 1, 0], [4, 5, 6, 7, 0, 1, 2, 3], [2, 7, 4, 1, 6, 3, 0, 5]]


def run(name: str, batch: EpisodeBatch, **chosen: object) -> TokenAdvantages:
    return get_advantage(name)(batch, AdvantageSettings(**chosen))  # type: ignore[arg-type]


def in_order(batch: EpisodeBatch, order: Sequence[int]) -> EpisodeBatch:
    return EpisodeBatch(
        [batch.group_ids[i] for i in order],
        batch.rewards[list(order)],
        [batch.turn_tokens[i] for i in order],
        None if batch.turn_rewards is None else [batch.turn_rewards[i] for i in order],
        None if batch.transitions is None else [batch.transitions[i] for i in order],
    )


def turns_batch() -> EpisodeBatch:
    """Of 1, 2 and 3 tokens per turn; the rewards of whole episodes say something else than their turns."""
    tokens = [[1, 2, 3][: len(turns)] for turns in TURN_REWARDS]
    return EpisodeBatch(TURN_GROUPS, np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), tokens, TURN_REWARDS)


def returns_batch() -> EpisodeBatch:
    """The second turn of the second episode sampled nothing: its reward falls to the token before."""
    rewards = [[1.0, 0.5], [1.0, 1.0, 2.0], [-1.25, 0.25]]
    return EpisodeBatch(list("aab"), np.array([1.5, 4.0, -1.0]), [[1, 2], [2, 0, 2], [1, 1]], rewards)


def steps_batch() -> EpisodeBatch:
    tokens = [[2, 1][: len(steps)] for steps in STEPS]
    return EpisodeBatch(STEP_GROUPS, np.array(STEP_REWARDS), tokens, transitions=[list(steps) for steps in STEPS])


def assert_turns(found: TokenAdvantages, batch: EpisodeBatch, expected: Sequence[Sequence[float]]) -> None:
    for values, tokens, turns in zip(found, batch.turn_tokens, expected, strict=True):
        np.testing.assert_allclose(values, np.repeat(turns, tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("normalize_std", [False, True])
def test_group_based_per_turn_two_groups_compare_turns_within_their_group(normalize_std: bool) -> None:
    batch = turns_batch()
    expected = [
        np.array(centred) / (np.array(spread) + 1e-6 if normalize_std else 1.0)
        for centred, spread in zip(CENTRED, SPREAD, strict=True)
    ]
    found = run("group_based_per_turn", batch, normalize_std=normalize_std)
    assert_turns(found, batch, [turns.tolist() for turns in expected])


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_reinforce_pp_turn_rewards_sit_on_the_last_token_of_their_turn(gamma: float) -> None:
    everything = np.concatenate(RETURNS[gamma])
    mean, scale = everything.mean(), np.sqrt(everything.var(ddof=1) + 1e-8)
    found = run("reinforce_pp", returns_batch(), gamma=gamma)
    for values, returns in zip(found, RETURNS[gamma], strict=True):
        np.testing.assert_allclose(values, (np.array(returns) - mean) / scale, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("base", ["group_based", "rloo"])
@pytest.mark.parametrize("normalize_std", [False, True])
def test_salt_step_of_three_episodes_gets_the_mean_of_all_copies(base: str, normalize_std: bool) -> None:
    """rloo of a group of four is 4/3 of the centred reward."""
    batch = steps_batch()
    scales = dict.fromkeys("gh", 0.75)
    if base == "group_based":
        scales = {group: STEP_STD[group] + 1e-6 if normalize_std else 1.0 for group in "gh"}
    expected = [(np.array(turns) / scales[group]).tolist() for group, turns in zip(STEP_GROUPS, MERGED, strict=True)]
    assert_turns(run("salt", batch, base=base, normalize_std=normalize_std), batch, expected)


@pytest.mark.parametrize("name", ["group_based_per_turn", "reinforce_pp", "salt"])
@pytest.mark.parametrize("order", ORDERS)
def test_advantage_over_turns_shuffled_episodes_give_the_shuffled_result(name: str, order: list[int]) -> None:
    batch = {"group_based_per_turn": turns_batch, "reinforce_pp": returns_batch, "salt": steps_batch}[name]()
    order = [index for index in order if index < len(batch)]
    plain, moved = run(name, batch), run(name, in_order(batch, order))
    assert [values.tolist() for values in moved] == [plain[i].tolist() for i in order]
