"""Rewards: one file each, found by its name. A new one is a new file with a function `reward`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.registry import FileRegistry

_FILES = FileRegistry(__name__, "environment.reward")


@dataclass(frozen=True)
class Rewards:
    """`components`, by name, of which `reward` is trained on; `by_turn`: one for each turn, which sum up to it, or None."""

    components: dict[str, float]
    by_turn: list[float] | None = None


Reward = Callable[[Task, Trajectory], Rewards]


def get_reward(name: str) -> Reward:
    """The function `(task, finished trajectory) -> Rewards` of that name; ConfigError if there is none."""
    return _FILES.get(name, "reward")
