"""The reward of `ndcg`, divided among the turns that earned it; for advantages that compare turns.

A turn that searches gets by how much it raises the nDCG@10 that can be reached with the documents shown so far; the last turn
gets the rest, which is what it made of them. The sum is the reward of `ndcg`, so the best policy is the same: this is shaping
by a potential (Ng, Harada and Russell 1999), without discount.
"""

from __future__ import annotations

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.metrics import ndcg_at_k
from rl_cluster.rewards import Rewards, ndcg


def reward(task: Task, trajectory: Trajectory) -> Rewards:
    """The components of `ndcg`; `by_turn` sums up to `reward`, exactly up to rounding."""
    components = ndcg.reward(task, trajectory).components
    by_turn: list[float] = []
    shown: set[str] = set()
    reached = 0.0
    for turn in trajectory.turns[:-1]:
        shown.update(turn.found_ids)
        best = sorted(shown, key=lambda doc_id: -task.gains.get(doc_id, 0.0))
        within_reach = ndcg_at_k(best, task.gains, 10) or 0.0
        by_turn.append(within_reach - reached)
        reached = within_reach
    return Rewards(components, [*by_turn, components["reward"] - reached])
