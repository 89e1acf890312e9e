"""Who writes the demonstrations of the warm-up: one file each, found by its name. A new one is a new file with a function `script`."""

from __future__ import annotations

from collections.abc import Callable

from rl_cluster.datasets.task import Task
from rl_cluster.demonstrators.demonstration import Script
from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.registry import FileRegistry

_FILES = FileRegistry(__name__, "warmup.demonstrator", shared=("demonstration",))

Demonstrator = Callable[[Task, SearchToolSettings], Script]


def get_demonstrator(name: str) -> Demonstrator:
    """The function `(task, tools) -> Script` of that name; ConfigError if there is none. See `demonstrators.demonstration`."""
    return _FILES.function(name, "script", 2)
