"""Trajectories to evaluation records."""

from __future__ import annotations

from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.summary import EpisodeRecord


def record_of(trajectory: Trajectory, dataset: str) -> EpisodeRecord:
    """What evaluation keeps of one episode."""
    calls = [call for turn in trajectory.turns for call in turn.tool_calls]
    malformed = sum(call.error is not None for call in calls)
    return EpisodeRecord(
        task_id=trajectory.task_id,
        dataset=dataset,
        outcome=trajectory.outcome,
        ndcg=trajectory.reward_components.get("ndcg@10", 0.0),
        turns=len(trajectory.turns),
        searches=len(calls) - malformed,
        malformed_calls=malformed,
        sampled_tokens=trajectory.num_sampled,
        latency_s=max(0.0, trajectory.finished_at - trajectory.started_at),
    )
