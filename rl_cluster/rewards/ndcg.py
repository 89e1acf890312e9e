"""nDCG@10 of the ranking that was handed in; -1 for an episode that the policy did not finish."""

from __future__ import annotations

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.metrics import ndcg_at_k
from rl_cluster.rewards import Rewards

FAILURE_REWARD = -1.0


def reward(task: Task, trajectory: Trajectory) -> Rewards:
    """Components `reward` (trained on) and `ndcg@10` (0 for a failed episode)."""
    if trajectory.outcome is not Outcome.FINISHED:
        return Rewards({"reward": FAILURE_REWARD, "ndcg@10": 0.0})
    score = ndcg_at_k(trajectory.ranking, task.gains, 10)
    return Rewards({"reward": score or 0.0, "ndcg@10": score or 0.0})
