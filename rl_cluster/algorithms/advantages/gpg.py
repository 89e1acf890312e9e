"""Reward minus the group's mean, scaled up for the groups without signal (GPG, 2504.02546)."""

from __future__ import annotations

import numpy as np

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, groups_with_signal

READS = ()


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """a (r_i - m) with a = E / (E - E0), E0 the episodes in groups of equal rewards; no setting applies.

    Use with `loss=policy_gradient`, the paper's -A lt. Groups of one episode count to E0.
    """
    result = np.zeros(len(batch), dtype=np.float64)
    groups = groups_with_signal(batch)
    with_signal = sum(len(group.indices) for group in groups)
    for group in groups:
        result[group.indices] = len(batch) / with_signal * (group.rewards - group.mean)
    return batch.over_tokens(result)
