"""Demonstrations for the warm-up: what a script does (see `rl_cluster.demonstrators`), written as the policy would have to write it.

They run through the same environment, rendering and tool format as episodes, so that the model is shown exactly the ids
that it will meet. Their log-probs are NaN, since nobody sampled them.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Generator, Sequence
from typing import Protocol

from rl_cluster.environments.search import write_ranking
from rl_cluster.episodes.environment import Environment
from rl_cluster.episodes.episode import EpisodeLimits
from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.episodes.rendering import ChatRenderer, Exchange
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
    task_id: str,
    environment: Environment,
    script: Script,
    renderer: ChatRenderer,
    tool_format: ToolFormat,
    limits: EpisodeLimits,
) -> Trajectory | None:
    """Plays `script` to its end; None where it hands in nothing, or where a reply has no room in `limits`: a policy that learns
    such replies is cut short. A ranking is shortened until it fits. Raises DataError when the script needs more turns than
    the environment gives."""
    trajectory = Trajectory(uuid.uuid4().hex, task_id, f"demonstration:{task_id}", [], Outcome.CANCELLED)
    head = (environment.system, environment.question, environment.tools)
    prompt = renderer.first_prompt(*head)
    exchanges: list[Exchange] = []
    observation: str | None = None
    while True:
        try:
            call = next(script) if observation is None else script.send(observation)
            text = tool_format.write_call(call.tool, {"query": call.query})
        except StopIteration as stop:
            if not stop.value:
                return None
            text = _answer(stop.value, renderer, limits.sampling_max_tokens)
        sampled = renderer.encode_reply(text)
        if len(sampled) > limits.sampling_max_tokens or len(prompt) + len(sampled) > limits.max_sequence_length:
            return None
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
        turn.observations = result.observations
        observation = "\n".join(result.observations)
        exchanges.append((text, result.observations))
        prompt = renderer.next_prompt(*head, prompt, sampled, exchanges)


def _answer(ranking: Sequence[str], renderer: ChatRenderer, max_tokens: int) -> str:
    """The answer with as many ids of the ranking, at least one, as a reply of `max_tokens` holds."""
    for length in range(len(ranking), 1, -1):
        text = f"answer: {write_ranking(ranking[:length])}"
        if len(renderer.encode_reply(text)) <= max_tokens:
            return text
    return f"answer: {write_ranking(ranking[:1])}"
