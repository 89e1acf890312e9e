"""Rewards of whole episodes and of their turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_cluster.algorithms.types import AdvantageSettings
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.learning.batch import build_step_batch
from rl_cluster.rewards import get_reward

TASK = Task(task_id="t", prompt="question", gains={"a": 1.0, "b": 1.0}, corpus="kb")
HALF = 1 / (1 + 1 / np.log2(3))
"""nDCG of one of two equal documents in the first place."""


def _episode(shown: list[tuple[str, ...]], ranking: list[str], outcome: Outcome = Outcome.FINISHED) -> Trajectory:
    turns = [
        Turn([1], [2, 3], [-1.0, -1.0], [0, 0], tool_calls=[ToolCall("bm25_search", {}, None, ids)]) for ids in shown
    ]
    return Trajectory("e", "t", "g", [*turns, Turn([9], [4], [-1.0], [0])], outcome, ranking=ranking)


def test_ndcg_by_turn_pays_a_search_for_what_it_brings_within_reach() -> None:
    found = get_reward("ndcg_by_turn")(TASK, _episode([("a", "x"), ("a",), ("y", "b")], ["a", "b"]))
    assert found.components == {"reward": 1.0, "ndcg@10": 1.0}
    assert found.by_turn == pytest.approx([HALF, 0.0, 1 - HALF, 0.0])


def test_ndcg_by_turn_last_turn_pays_for_what_was_found_and_not_handed_in() -> None:
    found = get_reward("ndcg_by_turn")(TASK, _episode([("a", "b")], ["x", "a"]))
    assert found.by_turn == pytest.approx([1.0, found.components["reward"] - 1.0])
    lost = get_reward("ndcg_by_turn")(TASK, _episode([("a", "b")], [], Outcome.TURN_LIMIT))
    assert lost.by_turn == pytest.approx([1.0, -2.0])


@given(
    shown=st.lists(st.lists(st.sampled_from("abxyz"), max_size=4).map(tuple), max_size=4),
    ranking=st.lists(st.sampled_from("abxyz"), min_size=1, max_size=5),
    outcome=st.sampled_from([Outcome.FINISHED, Outcome.NO_ANSWER, Outcome.TOKEN_LIMIT]),
)
def test_ndcg_by_turn_any_episode_sums_up_to_ndcg(
    shown: list[tuple[str, ...]], ranking: list[str], outcome: Outcome
) -> None:
    episode = _episode(shown, ranking, outcome)
    whole, divided = get_reward("ndcg")(TASK, episode), get_reward("ndcg_by_turn")(TASK, episode)
    assert whole.by_turn is None
    assert divided.components == whole.components
    assert divided.by_turn is not None
    assert len(divided.by_turn) == len(episode.turns)
    assert sum(divided.by_turn) == pytest.approx(whole.components["reward"], abs=1e-12)


def test_ndcg_by_turn_gives_the_searches_of_equal_episodes_different_advantages() -> None:
    episodes = [_episode([("a",), ("b",)], ["a", "b"]), _episode([("x",), ("a", "b")], ["a", "b"])]
    for name, episode in zip("pq", episodes, strict=True):
        rewards = get_reward("ndcg_by_turn")(TASK, episode)
        episode.trajectory_id, episode.reward, episode.turn_rewards = (
            name,
            rewards.components["reward"],
            rewards.by_turn,
        )
    batch = build_step_batch({"g": episodes}, "group_based_per_turn", AdvantageSettings(normalize_std=False), 0)
    first = {name: next(row for row in batch.rows if row.trajectory_id == name) for name in "pq"}
    assert first["p"].advantages[1:] == pytest.approx([HALF / 2] * 2)
    assert first["q"].advantages[1:] == pytest.approx([-HALF / 2] * 2)
