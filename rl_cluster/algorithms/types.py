"""The values that advantages and losses take and return; the names of every formula follow the same tables.

Shapes: E is the number of episodes of an optimiser batch, T the number of *trained* tokens (mask 1) handed to a loss,
flattened over rows. Losses never see prompts, observations or padding, so no mask can be forgotten inside one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rl_cluster.errors import ConfigError, LearnerError

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to plus or minus this value; beyond it the gradient through the ratio is 0."""


@dataclass(frozen=True)
class EpisodeBatch:
    """The episodes of one optimiser batch, in any order.

    group_ids [E], joined by equality alone; rewards [E] float64; num_tokens [E] int, sampled tokens of each episode
    over all its rows; turn_rewards, one list per episode, or None when the environment rewards whole episodes only.

    Raises LearnerError when lengths differ or a reward is not finite.
    """

    group_ids: list[str]
    rewards: npt.NDArray[np.float64]
    num_tokens: npt.NDArray[np.int_]
    turn_rewards: list[list[float]] | None = None

    def __post_init__(self) -> None:
        lengths = {"group_ids": len(self.group_ids), "rewards": len(self.rewards), "num_tokens": len(self.num_tokens)}
        if self.turn_rewards is not None:
            lengths["turn_rewards"] = len(self.turn_rewards)
        if len(set(lengths.values())) > 1:
            raise LearnerError(
                f"The fields of an episode batch have different lengths: {lengths}; give one entry each."
            )
        bad = np.flatnonzero(~np.isfinite(np.asarray(self.rewards, dtype=np.float64)))
        if len(bad):
            raise LearnerError(
                f"Episode {bad[0]} of group {self.group_ids[bad[0]]!r} has reward {self.rewards[bad[0]]}; "
                "rewards must be finite, and episodes lost to infrastructure leave the batch first."
            )

    def __len__(self) -> int:
        return len(self.group_ids)


@dataclass(frozen=True)
class AdvantageSettings:
    """normalize_std: divide by the group's standard deviation (ddof 1) plus epsilon; epsilon > 0."""

    normalize_std: bool = True
    epsilon: float = 1e-6


@dataclass(frozen=True)
class LossSettings:
    """Absolute bounds of the ratio (`ppo`: 0.8, 1.2) and the optional dual clip c > 1 of `ppo` (1912.09729)."""

    clip_low: float = 0.0
    clip_high: float = math.inf
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low <= self.clip_high:
            raise ConfigError(
                f"clip_low={self.clip_low} and clip_high={self.clip_high} are no band of ratios; "
                "give absolute bounds with 0 <= clip_low <= clip_high, such as 0.8 and 1.2."
            )
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(f"dual_clip={self.dual_clip} must be over 1, such as 3; null switches it off.")


@dataclass(frozen=True)
class TokenLoss:
    """terms [T], to be weighted and summed; clipped [T] bool; ratio [T], detached; num_missing_behaviour, see below.

    A token whose behaviour log-prob is NaN (the engine did not report it) is treated as on-policy: ratio 1, counted.
    """

    terms: torch.Tensor
    clipped: torch.Tensor
    ratio: torch.Tensor
    num_missing_behaviour: int = 0


Advantage = Callable[[EpisodeBatch, AdvantageSettings], npt.NDArray[np.float64]]
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, LossSettings], TokenLoss]


@dataclass(frozen=True)
class Group:
    """indices [n] into the batch, rewards [n], their mean and standard deviation (ddof 1, 0 for n < 2)."""

    indices: npt.NDArray[np.int_]
    rewards: npt.NDArray[np.float64]
    mean: float
    std: float


def groups_with_signal(batch: EpisodeBatch) -> list[Group]:
    """The groups of at least two episodes whose rewards are not all equal; every other episode has advantage 0.

    Equality is tested on the rewards themselves: the rounded mean of equal numbers may differ from them. Sums are
    exactly rounded (`math.fsum`), so that the result does not depend on the order of the batch in any bit.
    """
    members: dict[str, list[int]] = {}
    for index, group_id in enumerate(batch.group_ids):
        members.setdefault(group_id, []).append(index)
    groups = []
    for indices in members.values():
        rewards = np.asarray(batch.rewards, dtype=np.float64)[indices]
        if len(indices) < 2 or rewards.min() == rewards.max():
            continue
        mean = math.fsum(rewards) / len(rewards)
        std = math.sqrt(math.fsum((rewards - mean) ** 2) / (len(rewards) - 1))
        groups.append(Group(np.asarray(indices), rewards, mean, std))
    return groups


def importance_ratio(logprobs: torch.Tensor, behaviour_logprobs: torch.Tensor) -> tuple[torch.Tensor, int]:
    """exp(lt - lb) [T] with gradient, and how many behaviour log-probs were NaN (their ratio is 1, gradient kept)."""
    missing = torch.isnan(behaviour_logprobs)
    behaviour = torch.where(missing, logprobs.detach(), behaviour_logprobs)
    ratio = torch.exp(torch.clamp(logprobs - behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return ratio, int(missing.sum())
