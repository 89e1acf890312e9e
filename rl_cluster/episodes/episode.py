"""One episode: render, sample, parse, call tools, record.

Invariants: no request is sent whose prompt and reply could pass `max_sequence_length`; an infrastructure failure ends
the attempt with its own outcome and no reward; what the trajectory holds is what was sent and sampled.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.environment import Environment
from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.episodes.rendering import ChatRenderer, Exchange
from rl_cluster.episodes.reward import Reward, Rewards
from rl_cluster.episodes.sampling import Sample, SamplingSettings
from rl_cluster.episodes.trajectory import Trajectory, Turn, TurnTimes
from rl_cluster.errors import EngineError, Outcome, RewardError, ToolTimeoutError, ToolUnavailableError

MAX_REWARD = 1e6
"""Variances of much larger ones lose what they are made of."""
Sampler = Callable[[list[int], SamplingSettings], Awaitable[Sample]]


@dataclass(frozen=True)
class EpisodeLimits:
    """Tokens: `sampling_max_tokens` per reply, `max_sequence_length` for prompt and replies together."""

    sampling_max_tokens: int
    max_sequence_length: int
    temperature: float
    top_p: float


@dataclass(frozen=True)
class EpisodeParts:
    """What episodes of one worker share."""

    sampler: Sampler
    renderer: ChatRenderer
    tool_format: ToolFormat
    reward: Reward
    worker: str


async def run_episode(
    parts: EpisodeParts,
    task: Task,
    environment: Environment,
    limits: EpisodeLimits,
    group_id: str,
    attempt: int,
    index_id: str,
) -> Trajectory:
    """Plays one episode to its end; `index_id` is that of the index it searches. Failures of engine or tools become typed outcomes; cancelling it cancels all."""
    trajectory = Trajectory(
        trajectory_id=uuid.uuid4().hex,
        task_id=task.task_id,
        group_id=group_id,
        turns=[],
        outcome=Outcome.CANCELLED,
        attempt=attempt,
        index_id=index_id,
        worker=parts.worker,
        started_at=time.time(),
    )
    try:
        await _play(parts, environment, limits, trajectory)
    except EngineError as error:
        trajectory.outcome, trajectory.error = Outcome.ENGINE_ERROR, str(error)
    except ToolTimeoutError as error:
        trajectory.outcome, trajectory.error = Outcome.TOOL_TIMEOUT, str(error)
    except ToolUnavailableError as error:
        trajectory.outcome, trajectory.error = Outcome.TOOL_UNAVAILABLE, str(error)
    trajectory.finished_at = time.time()
    if not trajectory.outcome.is_infrastructure_failure:
        rewards = _rewards(parts.reward, task, trajectory)
        trajectory.reward_components, trajectory.turn_rewards = rewards.components, rewards.by_turn
        trajectory.reward = rewards.components["reward"]
    return trajectory


def _rewards(reward: Reward, task: Task, trajectory: Trajectory) -> Rewards:
    """What the function gives, as Python's own numbers, which journal and checkpoint can write. Raises RewardError where it fails or gives
    what cannot be trained on, since that is a mistake in it."""
    where = f"environment.reward, for an episode of task {task.task_id} that ended with {trajectory.outcome.value},"
    try:
        rewards = reward(task, trajectory)
    except Exception as error:
        raise RewardError(f"{where} raised {type(error).__name__}: {error}; mend the function.") from error
    if not isinstance(rewards, Rewards):
        raise RewardError(f"{where} gave {rewards!r}; return a rl_cluster.rewards.Rewards.")
    values = [rewards.components.get("reward"), *(rewards.by_turn or [])]
    numbers = all(isinstance(value, int | float | np.number) for value in [*values, *rewards.components.values()])
    if not numbers or not all(abs(value) <= MAX_REWARD for value in values):
        raise RewardError(
            f"{where} gave {rewards}; it needs a component 'reward', and finite numbers of at most {MAX_REWARD:g}."
        )
    components = {name: float(value) for name, value in rewards.components.items()}
    if rewards.by_turn is not None and not trajectory.turns:
        return Rewards(components, [])  # the first prompt left no room: no turn has a part in the reward
    if rewards.by_turn is not None and len(rewards.by_turn) != len(trajectory.turns):
        raise RewardError(
            f"{where} gave {len(rewards.by_turn)} by_turn for {len(trajectory.turns)} turns; give one for each."
        )
    if rewards.by_turn is not None and not math.isclose(sum(rewards.by_turn), values[0], abs_tol=1e-6):
        raise RewardError(
            f"{where} gave by_turn that sums to {sum(rewards.by_turn):g} for a reward of {values[0]:g}; divide the reward among the turns."
        )
    return Rewards(components, None if rewards.by_turn is None else [float(value) for value in rewards.by_turn])


async def _play(parts: EpisodeParts, environment: Environment, limits: EpisodeLimits, trajectory: Trajectory) -> None:
    renderer = parts.renderer
    head = (environment.system, environment.question, environment.tools)
    prompt = renderer.first_prompt(*head)
    exchanges: list[Exchange] = []
    while True:
        room = limits.max_sequence_length - len(prompt)
        if room < 1:
            trajectory.outcome = Outcome.SEQUENCE_LIMIT
            return
        sampling = SamplingSettings(
            temperature=limits.temperature,
            top_p=limits.top_p,
            max_tokens=min(room, limits.sampling_max_tokens),
            stop_token_ids=renderer.stop_token_ids,
        )
        started = time.time()
        sample = await parts.sampler(prompt, sampling)
        text = renderer.decode(sample.token_ids)
        turn = Turn(
            prompt_ids=prompt,
            sampled_ids=sample.token_ids,
            logprobs=sample.logprobs,
            weight_versions=sample.weight_versions,
            finish_reason=sample.finish_reason,
            text=text,
            mixed_cache_tokens=sample.mixed_cache_tokens,
            started_at=started,
            times=TurnTimes(sample.queue_s, sample.prefill_s, sample.decode_s),
        )
        trajectory.turns.append(turn)
        if sample.finish_reason == "length":
            short_of_room = room < limits.sampling_max_tokens
            trajectory.outcome = Outcome.SEQUENCE_LIMIT if short_of_room else Outcome.TOKEN_LIMIT
            return
        before_tools = time.monotonic()
        result = await environment.step(parts.tool_format.parse(text, environment.tools))
        tool_s = time.monotonic() - before_tools
        turn.times = TurnTimes(sample.queue_s, sample.prefill_s, sample.decode_s, tool_s)
        turn.tool_calls = result.calls
        if result.outcome is not None:
            trajectory.outcome, trajectory.ranking = result.outcome, result.ranking
            return
        turn.observations = result.observations
        exchanges.append((text, result.observations))
        prompt = renderer.next_prompt(*head, prompt, sample.token_ids, exchanges)
