"""A reward of one's own, as a user would write it beside the package: a quarter for each turn."""

from __future__ import annotations

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.rewards import Rewards


def reward(task: Task, trajectory: Trajectory) -> Rewards:
    return Rewards({"reward": 0.25 * len(trajectory.turns)})
