"""Advantages: one file each, found by its name. A new one is a new file with a function `advantage`, and READS: the settings
that it reads.
"""

from __future__ import annotations

from dataclasses import asdict

from rl_cluster.algorithms.types import Advantage, AdvantageSettings
from rl_cluster.errors import ConfigError
from rl_cluster.registry import FileRegistry

_FILES = FileRegistry(__name__, "algorithm.advantage.name")


def advantage_names() -> list[str]:
    """The names that `get_advantage` knows, sorted."""
    return _FILES.names()


def get_advantage(name: str) -> Advantage:
    """The function `(EpisodeBatch, AdvantageSettings) -> TokenAdvantages` of that name; ConfigError if there is none."""
    return _FILES.function(name, "advantage", 2)


def check_settings_are_read(name: str, settings: AdvantageSettings) -> None:
    """Raises ConfigError for a setting that was changed and that this advantage, as its READS say, does not read."""
    reads = getattr(_FILES.module(name), "READS", tuple(asdict(settings)))
    if "base" in reads and settings.base in advantage_names():
        reads = ("base", *_FILES.module(settings.base).READS)
    neutral = asdict(AdvantageSettings())
    for setting, value in asdict(settings).items():
        if value != neutral[setting] and setting not in reads:
            raise ConfigError(
                f"algorithm.advantage.{setting}={value} is not read by {name}, which reads {', '.join(reads) or 'no setting'}; leave it at "
                f"{neutral[setting]}."
            )
