"""Reward minus the group's mean, over its standard deviation (GRPO, 2402.03300; without std Dr. GRPO, 2503.20783)."""

from __future__ import annotations

import numpy as np

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, groups_with_signal

READS = ("normalize_std",)


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """(r_i - m) / (sd + epsilon), or r_i - m with `normalize_std` off, on every token of episode i.

    Groups of one episode, and groups of equal rewards, get exactly 0.
    """
    result = np.zeros(len(batch), dtype=np.float64)
    for group in groups_with_signal(batch):
        scale = group.std + settings.epsilon if settings.normalize_std else 1.0
        result[group.indices] = (group.rewards - group.mean) / scale
    return batch.over_tokens(result)
