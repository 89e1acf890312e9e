"""Rewards: one file each, found by its name. A new one is a new file with a function `reward`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from rl_cluster.datasets.task import Task
from rl_cluster.errors import ConfigError, Outcome

Reward = Callable[[Task, list[str], Outcome], dict[str, float]]


def get_reward(name: str) -> Reward:
    """The function `(task, ranking, outcome) -> components`, whose `reward` is the sum that is trained on."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name not in names:
        raise ConfigError(f"environment.reward={name!r} is unknown; choose one of {', '.join(names)}.")
    return importlib.import_module(f"{__name__}.{name}").reward
