"""Reward minus the mean of the group's other episodes (REINFORCE leave-one-out, 2402.14740)."""

from __future__ import annotations

import numpy as np

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, groups_with_signal

READS = ()


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """n / (n - 1) * (r_i - m); `normalize_std` does not apply, since the estimator is defined without it.

    Groups of one episode, and groups of equal rewards, get exactly 0.
    """
    result = np.zeros(len(batch), dtype=np.float64)
    for group in groups_with_signal(batch):
        n = len(group.indices)
        result[group.indices] = n / (n - 1) * (group.rewards - group.mean)
    return batch.over_tokens(result)
