"""The values that advantages and losses take and return; the names of every formula follow the same tables.

Shapes: E is the number of episodes of an optimiser batch, T the number of *trained* tokens (mask 1) handed to a loss,
flattened over rows. Losses never see prompts, observations or padding, so no mask can be forgotten inside one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rl_cluster.errors import ConfigError, LearnerError

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to plus or minus this value; beyond it the gradient through the ratio is 0."""


TokenAdvantages = list[npt.NDArray[np.float64]]
"""One array [tokens_i] per episode i: the advantage of each of its sampled tokens, in the order they were sampled."""


@dataclass(frozen=True)
class EpisodeBatch:
    """The episodes of one optimiser batch, in any order.

    group_ids [E], joined by equality alone; rewards [E] float64; turn_tokens, per episode the number of sampled tokens
    of each turn; turn_rewards, per episode one reward for each turn, or None when the environment rewards whole
    episodes only; transitions, per episode one value for each turn that says what was done in which state (equal
    values are the same step), or None; kl_rewards, per episode [tokens_i] the estimate k1 of the divergence from the
    reference, or None.

    Raises LearnerError when lengths differ or a reward is not finite.
    """

    group_ids: list[str]
    rewards: npt.NDArray[np.float64]
    turn_tokens: list[list[int]]
    turn_rewards: list[list[float]] | None = None
    transitions: list[list[Hashable]] | None = None
    kl_rewards: TokenAdvantages | None = None

    def __post_init__(self) -> None:
        lengths = {"group_ids": len(self.group_ids), "rewards": len(self.rewards), "turn_tokens": len(self.turn_tokens)}
        for name in ("turn_rewards", "transitions", "kl_rewards"):
            if (values := getattr(self, name)) is not None:
                lengths[name] = len(values)
        if len(set(lengths.values())) > 1:
            raise LearnerError(
                f"The fields of an episode batch have different lengths: {lengths}; give one entry each."
            )
        for index, turns in enumerate(self.turn_tokens):
            if min(turns, default=0) < 0:
                raise LearnerError(
                    f"Episode {index} of group {self.group_ids[index]!r} has a turn of {min(turns)} tokens; give 0 or more."
                )
        rewards = [np.asarray(self.rewards, dtype=np.float64)]
        for name, per_turn in (("turn_rewards", self.turn_rewards), ("transitions", self.transitions)):
            for index, values in enumerate(per_turn or []):
                if len(values) != len(self.turn_tokens[index]):
                    raise LearnerError(
                        f"Episode {index} of group {self.group_ids[index]!r} has {len(self.turn_tokens[index])} turns but "
                        f"{len(values)} {name}; give one for each turn."
                    )
        if self.kl_rewards is not None:
            for index, (values, count) in enumerate(zip(self.kl_rewards, self.num_tokens, strict=True)):
                if len(values) != count:
                    raise LearnerError(
                        f"Episode {index} of group {self.group_ids[index]!r} has {count} sampled tokens but {len(values)} kl_rewards; "
                        "give one for each token."
                    )
        if self.turn_rewards is not None:
            rewards.append(np.array([sum(values) for values in self.turn_rewards], dtype=np.float64))
        for values in rewards:
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise LearnerError(
                    f"Episode {bad[0]} of group {self.group_ids[bad[0]]!r} has reward {values[bad[0]]}; "
                    "rewards must be finite, and episodes lost to infrastructure leave the batch first."
                )

    def __len__(self) -> int:
        return len(self.group_ids)

    @property
    def num_tokens(self) -> npt.NDArray[np.int_]:
        """Sampled tokens of each episode [E]."""
        return np.array([sum(turns) for turns in self.turn_tokens], dtype=np.int64)

    def over_tokens(self, values: npt.NDArray[np.float64]) -> TokenAdvantages:
        """One value per episode [E], copied to each of its tokens."""
        return [np.full(count, value) for count, value in zip(self.num_tokens, values, strict=True)]

    def turns_over_tokens(self, values: Sequence[Sequence[float]]) -> TokenAdvantages:
        """One value for each turn of each episode, copied to the turn's tokens."""
        return [
            np.repeat(np.asarray(turns, dtype=np.float64), tokens)
            for turns, tokens in zip(values, self.turn_tokens, strict=True)
        ]


@dataclass(frozen=True)
class AdvantageSettings:
    """What advantages can be told; each file says which it reads.

    normalize_std: divide by the group's standard deviation (ddof 1) plus epsilon; epsilon > 0. whiten: to mean 0 and
    variance 1 over the tokens of the batch. gamma in (0, 1]: discount per turn or token. kl_beta >= 0: weight of the
    divergence from the reference inside the reward. base: the trajectory advantage that `salt` starts from.

    Raises ConfigError for a number out of its range.
    """

    normalize_std: bool = True
    epsilon: float = 1e-6
    whiten: bool = False
    gamma: float = 1.0
    kl_beta: float = 0.0
    base: str = "group_based"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ConfigError(f"epsilon={self.epsilon} is no number over 0; give one such as 1e-6.")
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"gamma={self.gamma} is no discount; give one over 0 and at most 1.")
        if not 0 <= self.kl_beta < math.inf:
            raise ConfigError(f"kl_beta={self.kl_beta} is no number of at least 0; 0 switches it off.")


@dataclass(frozen=True)
class LossSettings:
    """Absolute bounds of the ratio (`ppo`: 0.8, 1.2) and the optional dual clip c > 1 of `ppo` (1912.09729)."""

    clip_low: float = 0.0
    clip_high: float = math.inf
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.clip_low <= self.clip_high and self.clip_low < math.inf):
            raise ConfigError(
                f"clip_low={self.clip_low} and clip_high={self.clip_high} are no band of ratios; "
                "give absolute bounds with 0 <= clip_low <= clip_high, such as 0.8 and 1.2."
            )
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(f"dual_clip={self.dual_clip} must be over 1, such as 3; null switches it off.")


@dataclass(frozen=True)
class LossInputs:
    """What a loss may read; all tensors [T].

    logprobs lt under the weights being trained, with gradient; behaviour_logprobs lb as recorded while sampling (NaN
    where the engine reported none); advantages A. proximal_logprobs lp, the policy that ratios are taken against; None
    means the behaviour policy. episode_log_ratio, the mean over all tokens of the token's episode of lt - lb, without
    gradient, given to losses that ask for it. reference_logprobs lr of a reference or a teacher, where there is one.
    """

    logprobs: torch.Tensor
    behaviour_logprobs: torch.Tensor
    advantages: torch.Tensor
    proximal_logprobs: torch.Tensor | None = None
    episode_log_ratio: torch.Tensor | None = None
    reference_logprobs: torch.Tensor | None = None


@dataclass(frozen=True)
class TokenLoss:
    """terms [T], to be weighted and summed; clipped [T] bool; ratio [T], detached; num_missing_behaviour, see below.

    A token whose behaviour log-prob is NaN (the engine did not report it) is treated as on-policy: ratio 1, counted.
    """

    terms: torch.Tensor
    clipped: torch.Tensor
    ratio: torch.Tensor
    num_missing_behaviour: int = 0


Advantage = Callable[[EpisodeBatch, AdvantageSettings], TokenAdvantages]
Loss = Callable[[LossInputs, LossSettings], TokenLoss]


@dataclass(frozen=True)
class Group:
    """indices [n] into the batch, rewards [n], their mean and standard deviation (ddof 1, 0 for n < 2)."""

    indices: npt.NDArray[np.int_]
    rewards: npt.NDArray[np.float64]
    mean: float
    std: float


def all_equal(rewards: npt.NDArray[np.float64]) -> bool:
    """Whether rewards [G] differ by rounding alone: by at most a 1e-12th of the largest absolute value."""
    return bool(np.ptp(rewards) <= 1e-12 * np.abs(rewards).max())


def groups_with_signal(batch: EpisodeBatch) -> list[Group]:
    """The groups of at least two episodes whose rewards are not all equal; every other episode has advantage 0.

    Equality is tested on the rewards themselves, since the rounded mean of equal numbers may differ from them, and up to a
    1e-12th of the largest, since the same terms added up in another order may differ in their last digits. Sums are exactly rounded (`math.fsum`), so that the result does not depend on the order of the batch in any bit.
    """
    members: dict[str, list[int]] = {}
    for index, group_id in enumerate(batch.group_ids):
        members.setdefault(group_id, []).append(index)
    groups = []
    for indices in members.values():
        rewards = np.asarray(batch.rewards, dtype=np.float64)[indices]
        if len(indices) < 2 or all_equal(rewards):
            continue
        mean = math.fsum(rewards) / len(rewards)
        std = math.sqrt(math.fsum((rewards - mean) ** 2) / (len(rewards) - 1))
        groups.append(Group(np.asarray(indices), rewards, mean, std))
    return groups


def whitened(values: TokenAdvantages) -> TokenAdvantages:
    """(x - mean) / sqrt(variance + 1e-8) over all tokens of the batch, variance with ddof 1 (verl); 0 for one token."""
    everything = np.concatenate([*values, np.zeros(0)])
    if len(everything) < 2 or everything.min() == everything.max():
        return [np.zeros_like(value) for value in values]
    mean = math.fsum(everything) / len(everything)
    variance = math.fsum((everything - mean) ** 2) / (len(everything) - 1)
    return [(value - mean) / math.sqrt(variance + 1e-8) for value in values]


def importance_ratio(inputs: LossInputs) -> tuple[torch.Tensor, int]:
    """exp(lt - lp), or exp(lt - lb) without a proximal policy, [T] with gradient.

    Second, how many log-probs of that policy were NaN: their ratio is 1, gradient kept.
    """
    old = inputs.behaviour_logprobs if inputs.proximal_logprobs is None else inputs.proximal_logprobs
    missing = torch.isnan(old)
    old = torch.where(missing, inputs.logprobs.detach(), old)
    ratio = torch.exp(torch.clamp(inputs.logprobs - old, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    return ratio, int(missing.sum())
