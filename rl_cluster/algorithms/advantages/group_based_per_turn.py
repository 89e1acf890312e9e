"""Each turn's reward against the same turn of the group's other episodes."""

from __future__ import annotations

import math

import numpy as np

from rl_cluster.algorithms.advantages import group_based
from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages, all_equal

READS = ("normalize_std",)


def advantage(batch: EpisodeBatch, settings: AdvantageSettings) -> TokenAdvantages:
    """(r_ij - m_j) / (sd_j + epsilon) over the episodes of the group that have turn j, on the tokens of that turn.

    `normalize_std` as in group_based. A turn that only one episode has, and turns of equal rewards, get 0. Without
    rewards per turn this is group_based.
    """
    if batch.turn_rewards is None:
        return group_based.advantage(batch, settings)
    result = [np.zeros(len(turns)) for turns in batch.turn_rewards]
    members: dict[tuple[str, int], list[int]] = {}
    for index, (group_id, turns) in enumerate(zip(batch.group_ids, batch.turn_rewards, strict=True)):
        for turn in range(len(turns)):
            members.setdefault((group_id, turn), []).append(index)
    for (_, turn), episodes in members.items():
        rewards = np.array([batch.turn_rewards[index][turn] for index in episodes])
        if len(rewards) < 2 or all_equal(rewards):
            continue
        mean = math.fsum(rewards) / len(rewards)
        std = math.sqrt(math.fsum((rewards - mean) ** 2) / (len(rewards) - 1))
        scale = std + settings.epsilon if settings.normalize_std else 1.0
        for index, reward in zip(episodes, rewards, strict=True):
            result[index][turn] = (reward - mean) / scale
    return batch.turns_over_tokens([list(turns) for turns in result])
