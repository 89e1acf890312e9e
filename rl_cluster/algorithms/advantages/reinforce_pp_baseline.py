"""Reward minus the group's mean on every token, whitened over the batch (REINFORCE++ with baseline, 2501.03262)."""

from __future__ import annotations

import numpy as np

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, groups_with_signal, whitened

READS = ()


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """Whitened r_i - m; no setting applies. The divergence from a reference belongs into the loss, as k2.

    After whitening, episodes of groups without signal may get a value other than 0: the batch's mean over tokens is
    taken from them too. A batch in which no group has signal gets 0.
    """
    result = np.zeros(len(batch), dtype=np.float64)
    for group in groups_with_signal(batch):
        result[group.indices] = group.rewards - group.mean
    return whitened(batch.over_tokens(result))
