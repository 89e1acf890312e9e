"""Keeps the texts of a confidential data set out of whatever leaves this process: reports, records, MLflow, traces.

Numbers stay, and the ids of tasks and documents. Whatever a model wrote is text: queries, answers, names of tools that do not
exist, and token ids, which anyone can decode.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn

WITHHELD = "(withheld: confidential)"


def withhold_task(task: Task) -> Task:
    """The task with its id for a question, and without answers and metadata."""
    return replace(task, prompt=f"{task.task_id} {WITHHELD}", answers=(), metadata={})


def withhold_texts(trajectory: Trajectory, task: Task) -> Trajectory:
    """The episode without a text.

    A word in the ranking that is no id of a document which the episode was shown or `task` names may come from anywhere, so it
    is withheld too; its place stays.
    """
    known = {doc_id for turn in trajectory.turns for doc_id in turn.found_ids} | set(task.gains)
    return replace(
        trajectory,
        turns=[_turn(turn) for turn in trajectory.turns],
        ranking=[doc_id if doc_id in known else WITHHELD for doc_id in trajectory.ranking],
        error=WITHHELD if trajectory.error else "",
    )


def _turn(turn: Turn) -> Turn:
    return replace(
        turn,
        prompt_ids=_blank(turn.prompt_ids),
        sampled_ids=_blank(turn.sampled_ids),
        text="",
        tool_calls=[_call(call) for call in turn.tool_calls],
        observations=[WITHHELD for _ in turn.observations],
    )


def _call(call: ToolCall) -> ToolCall:
    if call.error is None:
        return replace(call, arguments={})
    return replace(call, name="", arguments={}, error=WITHHELD)


def _blank(ids: Sequence[int]) -> array[int]:
    return array("i", [0]) * len(ids)
