"""The discounted sum of the rewards from a turn on (REINFORCE without a baseline)."""

from __future__ import annotations

import numpy as np

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, whitened

READS = ("gamma", "whiten")


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """R_ij = sum over k >= j of gamma^(k-j) r_ik, on the tokens of turn j; a scalar reward sits on the last turn.

    `whiten`: R to mean 0 and variance 1 over the turns of the batch. An episode's group does not matter.
    """
    returns: list[np.ndarray] = []
    for index, turns in enumerate(batch.turn_tokens):
        if batch.turn_rewards is not None:
            rewards = np.array(batch.turn_rewards[index], dtype=np.float64)
        else:
            rewards = np.zeros(len(turns))
            rewards[-1:] = batch.rewards[index]
        for turn in range(len(rewards) - 2, -1, -1):
            rewards[turn] += settings.gamma * rewards[turn + 1]
        returns.append(rewards)
    return batch.turns_over_tokens([list(turns) for turns in (whitened(returns) if settings.whiten else returns)])
