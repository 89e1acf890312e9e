"""Reward minus the group's mean, over its standard deviation (GRPO, 2402.03300; without std Dr. GRPO, 2503.20783)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, groups_with_signal


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> npt.NDArray[np.float64]:
    """(r_i - m) / (sd + epsilon), or r_i - m with `normalize_std` off; [E] float64.

    Groups of one episode, and groups of equal rewards, get exactly 0.
    """
    result = np.zeros(len(batch), dtype=np.float64)
    for group in groups_with_signal(batch):
        scale = group.std + settings.epsilon if settings.normalize_std else 1.0
        result[group.indices] = (group.rewards - group.mean) / scale
    return result
