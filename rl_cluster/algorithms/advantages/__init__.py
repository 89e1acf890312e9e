"""Advantages: one file each, found by its name. A new one is a new file with a function `advantage`."""

from __future__ import annotations

from rl_cluster.algorithms.types import Advantage
from rl_cluster.registry import FileRegistry

_FILES = FileRegistry(__name__, "algorithm.advantage.name")


def advantage_names() -> list[str]:
    """The names that `get_advantage` knows, sorted."""
    return _FILES.names()


def get_advantage(name: str) -> Advantage:
    """The function `(EpisodeBatch, AdvantageSettings) -> TokenAdvantages` of that name; ConfigError if there is none."""
    return _FILES.get(name, "advantage")
