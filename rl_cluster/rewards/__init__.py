"""Rewards: one file each, found by its name. A new one is a new file with a function `reward`."""

from __future__ import annotations

from rl_cluster.episodes.reward import Reward, Rewards
from rl_cluster.registry import FileRegistry

__all__ = ["Reward", "Rewards", "get_reward"]

_FILES = FileRegistry(__name__, "environment.reward")


def get_reward(name: str) -> Reward:
    """The function `(task, finished trajectory) -> Rewards` of that name; ConfigError if there is none."""
    return _FILES.function(name, "reward", 2)
