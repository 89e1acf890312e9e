"""Credit by step: equal steps of a group's episodes share the mean of their advantages (SALT, 2510.20022).

A step is a value of `EpisodeBatch.transitions`: what the state was, what was done, and what came of it. Steps that good
and bad episodes have in common turn neutral, the steps in which they differ decide.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Hashable

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages
from rl_cluster.errors import ConfigError, LearnerError

BASES = ("group_based", "rloo", "opo")
READS = ("base",)
"""And what its base reads."""


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """The trajectory advantage `base`, averaged over the copies of a step within its group, on the step's tokens.

    Raises ConfigError for another base, LearnerError when the environment gave no transitions.
    """
    if settings.base not in BASES:
        raise ConfigError(
            f"algorithm.advantage.base={settings.base!r} is no base of salt; choose one of {', '.join(BASES)}."
        )
    if batch.transitions is None:
        raise LearnerError("advantage salt needs the transitions of each episode, but the environment gave none.")
    base = importlib.import_module(f"rl_cluster.algorithms.advantages.{settings.base}")
    one_token_each = EpisodeBatch(batch.group_ids, batch.rewards, [[max(1, count)] for count in batch.num_tokens])
    trajectory = [float(values[0]) for values in base.advantage(one_token_each, settings)]
    shares: dict[tuple[str, Hashable], list[float]] = {}
    for group_id, steps, value in zip(batch.group_ids, batch.transitions, trajectory, strict=True):
        for step in steps:
            shares.setdefault((group_id, step), []).append(value)
    means = {key: math.fsum(values) / len(values) for key, values in shares.items()}
    return batch.turns_over_tokens(
        [
            [means[group_id, step] for step in steps]
            for group_id, steps in zip(batch.group_ids, batch.transitions, strict=True)
        ]
    )
