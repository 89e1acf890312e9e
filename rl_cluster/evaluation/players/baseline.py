"""Baselines without a model: the question itself is the one query, what is found is handed in."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import Outcome, SearchRequestError, ToolTimeoutError, ToolUnavailableError
from rl_cluster.evaluation.drift.base import noted_injections
from rl_cluster.evaluation.world import World

DEPTH = 100
SHOWN = 10


@dataclass
class Baseline:
    """`tool`: bm25_search, vector_search or hybrid_search."""

    tool: str
    concurrency: int = 1
    tool_format: ToolFormat | None = None

    async def play(self, world: World, task: Task, sample: int) -> Trajectory:
        started = time.time()
        error, found, observation, outcome = None, [], "", Outcome.NO_ANSWER
        with noted_injections() as noted:
            try:
                client = world.search_client(task, sample)
                found = await client.search(self.tool, task.prompt, DEPTH, task.excluded, snippets=False)
                observation = " ".join(document.doc_id for document in found[:SHOWN]) or "nothing found"
            except SearchRequestError as refused:
                error = str(refused)
            except ToolTimeoutError as late:
                error, outcome = str(late), Outcome.TOOL_TIMEOUT
            except ToolUnavailableError as gone:
                error, outcome = str(gone), Outcome.TOOL_UNAVAILABLE
        ids = [document.doc_id for document in found]
        call = ToolCall(self.tool, {"query": task.prompt}, error, tuple(ids), bool(noted))
        turn = Turn([], [], [], [], tool_calls=[call], observations=[observation], started_at=started)
        return Trajectory(
            trajectory_id=uuid.uuid4().hex,
            task_id=task.task_id,
            group_id=f"{task.task_id}:{sample}",
            turns=[turn],
            outcome=Outcome.FINISHED if ids else outcome,
            ranking=ids,
            index_id=world.index_id,
            started_at=started,
            finished_at=time.time(),
            error=error or "",
        )
