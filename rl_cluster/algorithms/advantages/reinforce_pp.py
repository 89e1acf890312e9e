"""Return of every token, whitened over the batch (REINFORCE++, 2501.03262)."""

from __future__ import annotations

import numpy as np

from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, whitened

READS = ("gamma", "kl_beta")


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """R_t = sum over s >= t of gamma^d (r_s - kl_beta k1_s), d sampled tokens between t and s, then whitened.

    The reward of a turn (or of the episode) is that of its last sampled token, or of the last one before it where it
    sampled none. The return is carried across tool
    output: the tokens before the last observation earn the final reward too. An episode's group does not matter.
    """
    returns: list[np.ndarray] = []
    for index, turns in enumerate(batch.turn_tokens):
        rewards = np.zeros(sum(turns))
        if batch.turn_rewards is None:
            rewards[-1:] += batch.rewards[index]
        else:
            for end, reward in zip(np.cumsum(turns), batch.turn_rewards[index], strict=True):
                if end:
                    rewards[end - 1] += reward
        if settings.kl_beta and batch.kl_rewards is not None:
            rewards = rewards - settings.kl_beta * batch.kl_rewards[index]
        if settings.gamma == 1.0:
            rewards = np.cumsum(rewards[::-1])[::-1].copy()
        else:
            for token in range(len(rewards) - 2, -1, -1):
                rewards[token] += settings.gamma * rewards[token + 1]
        returns.append(rewards)
    return whitened(returns)
