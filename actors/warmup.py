"""The rows of the demonstrations that the policy is warmed up on."""

from __future__ import annotations

import asyncio

import numpy as np

from actors.run_parts import environment_settings
from actors.search_client import CorpusClients
from rl_cluster.config import Config
from rl_cluster.datasets.task import Task
from rl_cluster.environments.scripted_searcher import scripted_search
from rl_cluster.environments.search import SearchEnvironment
from rl_cluster.episodes.demonstrations import demonstrate
from rl_cluster.episodes.formats import detect_format, get_format
from rl_cluster.episodes.rendering import ChatRenderer
from rl_cluster.sequences.extension import rows_from_trajectory
from rl_cluster.sequences.row import TrainingRow


async def demonstration_rows(
    config: Config, model_path: str, tasks: list[Task], clients: CorpusClients
) -> list[list[TrainingRow]]:
    """One list of rows per demonstration; every token that the script wrote has weight 1."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
    name = config.model.tool_format
    tool_format = get_format(detect_format(tokenizer.chat_template or "") if name == "auto" else name)
    renderer = ChatRenderer(tokenizer, tool_format.observation_role, tool_format.uses_template_tools)
    settings = environment_settings(config)

    async def one(task: Task) -> list[TrainingRow]:
        environment = SearchEnvironment(task, settings, tool_format, clients.over(task.corpus))
        script = scripted_search(task.prompt, settings.k)
        trajectory = await demonstrate(task.task_id, environment, script, renderer, tool_format)
        rows = rows_from_trajectory(trajectory).rows
        for row in rows:
            row.advantages = row.loss_mask.astype(np.float32)
        return rows

    return list(await asyncio.gather(*(one(task) for task in tasks)))
