"""A model whose tokens come from a sampler, such as a vLLM engine in another process: the episodes of training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_cluster.config_rollout import RolloutConfig
from rl_cluster.datasets.task import Document, Task
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.environments.sizing import measure_episode
from rl_cluster.episodes.episode import EpisodeLimits, EpisodeParts, Sampler, run_episode
from rl_cluster.episodes.formats import detect_format, get_format
from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.episodes.rendering import ChatRenderer
from rl_cluster.episodes.reward import Reward
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import ConfigError, Outcome
from rl_cluster.evaluation.world import World

RETRY_PAUSE_S = 1.0


@dataclass
class Model:
    """Retries what the infrastructure failed, up to `retries` times. `format_name`: a tool format, or `auto`."""

    sampler: Sampler
    tokenizer: Any
    format_name: str
    limits: EpisodeLimits
    reward: Reward
    concurrency: int
    retries: int
    name: str = "model"
    parts: EpisodeParts = field(init=False)

    def __post_init__(self) -> None:
        name = detect_format(self.tokenizer.chat_template or "") if self.format_name == "auto" else self.format_name
        format_ = get_format(name)
        renderer = ChatRenderer(self.tokenizer, format_.observation_role, format_.uses_template_tools)
        self.parts = EpisodeParts(self.sampler, renderer, format_, self.reward, self.name)

    @property
    def tool_format(self) -> ToolFormat:
        return self.parts.tool_format

    async def play(self, world: World, task: Task, sample: int) -> Trajectory:
        attempt = 0
        while True:
            environment = world.episode(task, sample, self.tool_format)
            group = f"{task.task_id}:{sample}"
            trajectory = await run_episode(self.parts, task, environment, self.limits, group, attempt, world.index_id)
            retried = trajectory.outcome in (Outcome.TOOL_TIMEOUT, Outcome.TOOL_UNAVAILABLE, Outcome.ENGINE_ERROR)
            if not retried or attempt >= self.retries:
                return trajectory
            attempt += 1
            await asyncio.sleep(RETRY_PAUSE_S * attempt)


def check_context(
    tokenizer: Any,
    positions: int | None,
    name: str,
    tool_format: str,
    rollout: RolloutConfig,
    environment: SearchEnvironmentSettings,
    snippet_words: int,
    tasks: Sequence[Task],
    documents: Sequence[Document],
) -> None:
    """Raises ConfigError where the tasks do not fit the sequence length, or that does not fit the model's positions."""
    if positions is not None and rollout.max_sequence_length > positions:
        raise ConfigError(
            f"rollout.max_sequence_length={rollout.max_sequence_length} is over the {positions} positions of {name}; lower it, or "
            "choose a model with a longer context."
        )
    size = measure_episode(
        tokenizer, tool_format, environment, tasks, documents, snippet_words, rollout.sampling_max_tokens
    )
    if size.total > rollout.max_sequence_length:
        raise ConfigError(
            f"rollout.max_sequence_length={rollout.max_sequence_length} is too short for {name}: a prompt of {size.prompt} tokens, "
            f"{size.max_turns} replies of {size.reply} and {size.max_turns - 1} tool answers of about {size.observation} need "
            f"{size.total}; raise it, or lower environment.max_turns or environment.k."
        )
