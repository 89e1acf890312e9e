"""Demonstrations for the warm-up: what a script does (see `rl_cluster.demonstrators`), written as the policy would have to write it.

They run through the same environment, rendering and tool format as episodes, so that the model is shown exactly the ids
that it will meet. Their log-probs are NaN, since nobody sampled them.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Generator
from typing import Protocol

from rl_cluster.episodes.environment import Environment
from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.episodes.rendering import ChatRenderer
from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import DataError, Outcome


class ScriptedCall(Protocol):
    """A search that the script asks for."""

    @property
    def tool(self) -> str: ...

    @property
    def query(self) -> str: ...


Script = Generator[ScriptedCall, str, list[str]]
"""Yields searches, is sent what each shows, and returns the ranking: empty where there is nothing to demonstrate."""


async def demonstrate(
    task_id: str, environment: Environment, script: Script, renderer: ChatRenderer, tool_format: ToolFormat
) -> Trajectory | None:
    """Plays `script` to its end; None where it hands in nothing. Raises DataError when it needs more turns than the environment
    gives."""
    trajectory = Trajectory(uuid.uuid4().hex, task_id, f"demonstration:{task_id}", [], Outcome.CANCELLED)
    head = (environment.system, environment.question, environment.tools)
    prompt = renderer.first_prompt(*head)
    exchanges: list[tuple[str, str]] = []
    observation: str | None = None
    while True:
        try:
            call = next(script) if observation is None else script.send(observation)
            text = tool_format.write_call(call.tool, {"query": call.query})
        except StopIteration as stop:
            if not stop.value:
                return None
            text = "answer: " + " ".join(stop.value)
        sampled = renderer.encode_reply(text)
        turn = Turn(prompt, sampled, [math.nan] * len(sampled), [0] * len(sampled), text=text)
        trajectory.turns.append(turn)
        result = await environment.step(tool_format.parse(text, environment.tools))
        turn.tool_calls = result.calls
        if result.outcome is not None:
            trajectory.outcome, trajectory.ranking = result.outcome, result.ranking
            if result.outcome is not Outcome.FINISHED:
                raise DataError(
                    f"The demonstration of task {task_id} ended with {result.outcome.value}; raise environment.max_turns."
                )
            return trajectory
        turn.observations = [result.observation]
        observation = result.observation
        exchanges.append((text, observation))
        prompt = renderer.next_prompt(*head, prompt, sampled, exchanges)
