"""Trajectories to evaluation records: the ranking against the gains, and what the searches had to do with it."""

from __future__ import annotations

from rl_cluster.datasets.task import Task
from rl_cluster.environments.search_tools import READ_TOOL
from rl_cluster.episodes.trajectory import ToolCall, Trajectory
from rl_cluster.evaluation.metrics import ndcg_at_k, recall_at_k, reciprocal_rank
from rl_cluster.evaluation.summary import EpisodeRecord


def record_of(trajectory: Trajectory, task: Task, billed_s: float = 0.0) -> EpisodeRecord:
    """What evaluation keeps of one episode of `task`; its measures do not depend on its reward. `billed_s` as `EpisodeRecord` has it."""
    calls = [call for turn in trajectory.turns for call in turn.tool_calls]
    malformed = sum(call.error is not None and not call.injected for call in calls)
    gold = {doc_id for doc_id, gain in task.gains.items() if gain > 0}
    found = gold & {doc_id for turn in trajectory.turns for doc_id in turn.found_ids}
    return EpisodeRecord(
        task_id=trajectory.task_id,
        dataset=task.dataset,
        outcome=trajectory.outcome,
        ndcg=ndcg_at_k(trajectory.ranking, task.gains, 10) or 0.0,
        turns=len(trajectory.turns),
        searches=len(searches_of(trajectory)),
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
        injected=sum(call.injected for call in calls),
        handed_in=len(trajectory.ranking),
        billed_s=billed_s,
        waited_s=sum(turn.times.queue_s for turn in trajectory.turns),
        # A reward function may give a number of numpy's, which no file of records could hold.
        reward=None if trajectory.reward is None else float(trajectory.reward),
        ranking=tuple(trajectory.ranking),
    )


def searches_of(trajectory: Trajectory) -> list[ToolCall]:
    """The calls of search tools that were carried out, or that a drift made fail, in their order."""
    return [
        call
        for turn in trajectory.turns
        if turn.observations  # the calls of a last turn are answered by nobody
        for call in turn.tool_calls
        if call.name != READ_TOOL and (call.error is None or call.injected)
    ]


def idle_searches(trajectory: Trajectory) -> int:
    """Number of searches that showed no document that the episode had not been shown before.

    The first search is none of them, and one that a drift made fail is not one either.
    """
    shown: set[str] = set()
    idle = 0
    answered = [call for call in searches_of(trajectory) if call.error is None]
    for place, call in enumerate(answered):
        idle += place > 0 and shown.issuperset(call.found_ids)
        shown.update(call.found_ids)
    return idle
