"""The searcher by rule of `enterprise_kb`: what several searches reach there without a model."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

from rl_cluster.datasets.task import Task
from rl_cluster.environments.scripted_searcher import scripted_search
from rl_cluster.environments.search import write_ranking
from rl_cluster.episodes.formats import get_format
from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import Outcome, ToolTimeoutError, ToolUnavailableError
from rl_cluster.evaluation.world import World


@dataclass
class Scripted:
    """Speaks the plain format, as the demonstrations do."""

    concurrency: int = 1
    tool_format: ToolFormat = field(default_factory=lambda: get_format("plain"))

    async def play(self, world: World, task: Task, sample: int) -> Trajectory:
        environment = world.episode(task, sample, self.tool_format)
        script = scripted_search(task.prompt, world.environment.k)
        trajectory = Trajectory(
            trajectory_id=uuid.uuid4().hex,
            task_id=task.task_id,
            group_id=f"{task.task_id}:{sample}",
            turns=[],
            outcome=Outcome.CANCELLED,
            index_id=world.index_id,
            started_at=time.time(),
        )
        observation: str | None = None
        while trajectory.outcome is Outcome.CANCELLED:
            try:
                call = next(script) if observation is None else script.send(observation)
                text = self.tool_format.write_call(call.tool, {"query": call.query})
            except StopIteration as stop:
                text = f"answer: {write_ranking(stop.value)}"
            turn = Turn([], [], [], [], text=text, started_at=time.time())
            trajectory.turns.append(turn)
            try:
                result = await environment.step(self.tool_format.parse(text, environment.tools))
            except ToolTimeoutError as late:
                trajectory.outcome, trajectory.error = Outcome.TOOL_TIMEOUT, str(late)
                break
            except ToolUnavailableError as gone:
                trajectory.outcome, trajectory.error = Outcome.TOOL_UNAVAILABLE, str(gone)
                break
            turn.tool_calls = result.calls
            if result.outcome is not None:
                trajectory.outcome, trajectory.ranking = result.outcome, result.ranking
            else:
                turn.observations = result.observations
                observation = "\n".join(result.observations)
        trajectory.finished_at = time.time()
        return trajectory
