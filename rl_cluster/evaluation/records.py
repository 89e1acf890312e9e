"""Trajectories to evaluation records: the ranking against the gains, and what the searches had to do with it."""

from __future__ import annotations

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.metrics import ndcg_at_k, recall_at_k, reciprocal_rank
from rl_cluster.evaluation.summary import EpisodeRecord

INJECTED = "(injected)"
"""Ends the text of a failure that a drift puts in the search's way."""


def record_of(trajectory: Trajectory, task: Task) -> EpisodeRecord:
    """What evaluation keeps of one episode of `task`, whatever reward it was given."""
    calls = [call for turn in trajectory.turns for call in turn.tool_calls]
    injected = sum(call.error is not None and call.error.endswith(INJECTED) for call in calls)
    malformed = sum(call.error is not None for call in calls) - injected
    gold = {doc_id for doc_id, gain in task.gains.items() if gain > 0}
    found = gold & {doc_id for turn in trajectory.turns for doc_id in turn.found_ids}
    return EpisodeRecord(
        task_id=trajectory.task_id,
        dataset=task.dataset,
        outcome=trajectory.outcome,
        ndcg=ndcg_at_k(trajectory.ranking, task.gains, 10) or 0.0,
        turns=len(trajectory.turns),
        searches=len(calls) - malformed,
        malformed_calls=malformed,
        sampled_tokens=trajectory.num_sampled,
        latency_s=max(0.0, trajectory.finished_at - trajectory.started_at),
        recall_10=recall_at_k(trajectory.ranking, task.gains, 10) or 0.0,
        recall_100=recall_at_k(trajectory.ranking, task.gains, 100) or 0.0,
        reciprocal_rank=reciprocal_rank(trajectory.ranking, task.gains) or 0.0,
        prompt_tokens=sum(len(turn.prompt_ids) for turn in trajectory.turns),
        gold=len(gold),
        gold_found=len(found),
        gold_left=len(found - set(trajectory.ranking)),
        idle_searches=idle_searches(trajectory),
        injected=injected,
    )


def idle_searches(trajectory: Trajectory) -> int:
    """Number of searching turns whose hits, in whatever order, are those of an earlier searching turn."""
    seen: set[frozenset[str]] = set()
    idle = 0
    for turn in trajectory.turns:
        if not any(call.error is None for call in turn.tool_calls) or not turn.observations:
            continue
        hits = frozenset(turn.found_ids)
        idle += hits in seen
        seen.add(hits)
    return idle
