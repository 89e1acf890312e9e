"""Only the group's best episode is pushed, by its lead over the second (2503.19595, as in verl)."""

from __future__ import annotations

import numpy as np

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, groups_with_signal

READS = ("normalize_std",)


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """Best episode: (r_max - r_2nd) / (sd + epsilon), without the divisor if `normalize_std` is off; others 0.

    A tie for the best gives 0 to all, which also makes the result independent of the order of the batch.
    """
    result = np.zeros(len(batch), dtype=np.float64)
    for group in groups_with_signal(batch):
        second, best = np.sort(group.rewards)[-2:]
        scale = group.std + settings.epsilon if settings.normalize_std else 1.0
        result[group.indices[int(np.argmax(group.rewards))]] = (best - second) / scale
    return batch.over_tokens(result)
