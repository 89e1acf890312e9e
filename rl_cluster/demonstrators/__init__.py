"""Who writes the demonstrations of the warm-up: one file each, found by its name. A new one is a new file with a function `script`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from rl_cluster.datasets.task import Task
from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.episodes.demonstrations import Script
from rl_cluster.errors import ConfigError

Demonstrator = Callable[[Task, SearchToolSettings], Script]


def get_demonstrator(name: str) -> Demonstrator:
    """The function `(task, tools) -> Script` of that name; ConfigError if there is none. See `episodes.demonstrations`."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name not in names:
        raise ConfigError(f"warmup.demonstrator={name!r} is unknown; choose one of {', '.join(names)}.")
    return importlib.import_module(f"{__name__}.{name}").script
