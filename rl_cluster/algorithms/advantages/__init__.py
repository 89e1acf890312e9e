"""Advantages: one file each, found by its name. A new one is a new file with a function `advantage`."""

from __future__ import annotations

import importlib
import pkgutil

from rl_cluster.algorithms.types import Advantage
from rl_cluster.errors import ConfigError


def advantage_names() -> list[str]:
    """The names that `get_advantage` knows, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get_advantage(name: str) -> Advantage:
    """The function `(EpisodeBatch, AdvantageSettings) -> TokenAdvantages` of that name; ConfigError if there is none."""
    if name not in advantage_names():
        raise ConfigError(f"advantage={name!r} is unknown; choose one of {', '.join(advantage_names())}.")
    return importlib.import_module(f"{__name__}.{name}").advantage
