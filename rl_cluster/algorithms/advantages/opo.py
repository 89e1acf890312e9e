"""Reward minus the group's mean weighted by length, the optimal baseline (OPO, 2505.23585)."""

from __future__ import annotations

import math

import numpy as np

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, groups_with_signal

READS = ()


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """r_i - sum(l_j r_j) / sum(l_j) over the group, l the sampled tokens of an episode; no setting applies.

    Groups of one episode, and groups of equal rewards, get exactly 0; so does a group that sampled nothing.
    """
    result = np.zeros(len(batch), dtype=np.float64)
    tokens = batch.num_tokens
    for group in groups_with_signal(batch):
        lengths = tokens[group.indices]
        if lengths.sum():
            baseline = math.fsum(lengths * group.rewards) / float(lengths.sum())
            result[group.indices] = group.rewards - baseline
    return batch.over_tokens(result)
