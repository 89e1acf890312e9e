"""The searcher by rule of the bundled collection; it understands no other."""

from __future__ import annotations

from rl_cluster.datasets.task import Task
from rl_cluster.demonstrators.demonstration import Script
from rl_cluster.environments.scripted_searcher import scripted_search
from rl_cluster.environments.search_tools import SearchToolSettings


def script(task: Task, tools: SearchToolSettings) -> Script:
    """See `environments.scripted_searcher`; it sees what a model sees."""
    return scripted_search(task.prompt, tools.k)
