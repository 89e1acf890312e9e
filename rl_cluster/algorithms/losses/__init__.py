"""Token losses: one file each, found by its name. A new one is a new file with a function `loss`, and `DEFAULTS`: the
bounds that it is published with, which its file in `hydra_conf/algorithm/loss` sets. A loss outside this folder takes those of the settings.

A file that sets NEEDS_EPISODE_RATIO or NEEDS_REFERENCE is given the input of that name.
"""

from __future__ import annotations

from rl_cluster.algorithms.types import Loss, LossSettings
from rl_cluster.registry import FileRegistry

_FILES = FileRegistry(__name__, "algorithm.loss.name")


def loss_names() -> list[str]:
    """The names that `get_loss` knows, sorted."""
    return _FILES.names()


def get_loss(name: str) -> Loss:
    """The function `(LossInputs, LossSettings) -> TokenLoss`.

    Raises ConfigError for an unknown name.
    """
    return _FILES.function(name, "loss", 2)


def default_settings(name: str) -> LossSettings:
    """The loss's own clip bounds: `ppo` 0.8 and 1.2, `cispo` 0 and 5, the others unbounded. ConfigError if unknown."""
    return _FILES.get(name, "DEFAULTS")


def needs_episode_ratio(name: str) -> bool:
    """Whether the loss reads `LossInputs.episode_log_ratio`, which costs a forward pass of its own."""
    return getattr(_FILES.module(name), "NEEDS_EPISODE_RATIO", False)


def needs_reference(name: str) -> bool:
    """Whether the loss reads `LossInputs.reference_logprobs`."""
    return getattr(_FILES.module(name), "NEEDS_REFERENCE", False)
