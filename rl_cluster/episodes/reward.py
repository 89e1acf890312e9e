"""What an episode asks of a reward function: see `rl_cluster.rewards` for those that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory


@dataclass(frozen=True)
class Rewards:
    """`components`, by name, of which `reward` is trained on; `by_turn`: one for each turn, which sum up to it, or None."""

    components: dict[str, float]
    by_turn: list[float] | None = None


Reward = Callable[[Task, Trajectory], Rewards]
