"""Cloning on demonstrations: their rows, and the updates on them, for the warm-up and for the control arm."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from actors.event_log import EventLog
from actors.learner import LearnerGroup
from actors.run_parts import environment_settings, episode_limits, supervised_settings
from actors.search_client import CorpusClients
from rl_cluster.config import Config
from rl_cluster.datasets.task import Task
from rl_cluster.demonstrators import get_demonstrator
from rl_cluster.demonstrators.demonstration import demonstrate
from rl_cluster.environments.search import SearchEnvironment
from rl_cluster.episodes.formats import detect_format, get_format
from rl_cluster.episodes.rendering import ChatRenderer
from rl_cluster.errors import DataError
from rl_cluster.sequences.extension import rows_from_trajectory
from rl_cluster.sequences.row import TrainingRow
from rl_cluster.tracking.run_tracker import RunTracker


async def demonstration_rows(
    config: Config, model_path: str, tasks: list[Task], clients: CorpusClients
) -> list[list[TrainingRow]]:
    """One list of rows per demonstration; every token that the script wrote has weight 1.

    `tasks` are tried in their order until there are `warmup.demonstrations`. Raises DataError where none can be demonstrated.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
    name = config.model.tool_format
    tool_format = get_format(detect_format(tokenizer.chat_template or "") if name == "auto" else name)
    renderer = ChatRenderer(tokenizer, tool_format.observation_role, tool_format.uses_template_tools)
    settings = environment_settings(config)
    demonstrator = get_demonstrator(config.warmup.demonstrator)
    limits = episode_limits(config, config.rollout.temperature)

    async def one(task: Task) -> list[TrainingRow] | None:
        environment = SearchEnvironment(task, settings, tool_format, clients.over(task.corpus))
        script = demonstrator(task, settings.tool_settings)
        trajectory = await demonstrate(task.task_id, environment, script, renderer, tool_format, limits)
        if trajectory is None:
            return None
        rows = rows_from_trajectory(trajectory).rows
        for row in rows:
            row.advantages = row.loss_mask.astype(np.float32)
        return rows

    found: list[list[TrainingRow]] = []
    wanted, tried = config.warmup.demonstrations, 0
    while tried < len(tasks) and len(found) < wanted:
        some = tasks[tried : tried + wanted]
        found += [rows for rows in await asyncio.gather(*map(one, some)) if rows is not None]
        tried += len(some)
    if not found:
        raise DataError(
            f"warmup.demonstrator={config.warmup.demonstrator}: none of the {tried} training tasks can be demonstrated, since no search "
            f"with the question shows a relevant document, or a reply is longer than rollout.sampling_max_tokens="
            f"{limits.sampling_max_tokens}; raise environment.k={settings.k} or the latter, or set warmup=none."
        )
    return found[:wanted]


async def clone(
    config: Config,
    learner: LearnerGroup,
    rows: list[list[TrainingRow]],
    tracker: RunTracker,
    log: EventLog,
    name: str,
    steps: int | None = None,
    seconds: float | None = None,
) -> int:
    """Supervised updates on `rows`, by demonstration, for a number of steps or for a wall time; returns the updates made.

    `name`: of the stage, in metrics and events.
    """
    timeout_s = config.training.step_timeout_s
    await learner.call("begin_supervised", timeout_s, config.warmup.learning_rate)
    size, made, started = config.warmup.batch_size, 0, time.monotonic()
    update = supervised_settings(config)
    while (steps is None or made < steps) and (seconds is None or time.monotonic() - started < seconds):
        first = made * size
        batch = [row for i in range(size) for row in rows[(first + i) % len(rows)]]
        metrics = await learner.update(batch, update, timeout_s, supervised=True)
        made += 1
        tracker.log_metrics({f"{name}/{key}": value for key, value in metrics.items()}, made)
        log.emit("supervised", stage=name, step=made, of=steps, loss=metrics["learner/loss"])
    return made
