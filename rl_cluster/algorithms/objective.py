"""What is minimised: a token loss, its correction, and the optional divergence and entropy terms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from rl_cluster.algorithms.corrections import CorrectionSettings, correction_weights
from rl_cluster.algorithms.kl import Estimator, kl_estimate
from rl_cluster.algorithms.losses import get_loss, needs_episode_ratio, needs_reference
from rl_cluster.algorithms.types import LossInputs, LossSettings, TokenLoss, importance_ratio
from rl_cluster.errors import ConfigError, LearnerError


@dataclass(frozen=True)
class ObjectiveSettings:
    """`loss` by name with its bounds; kl_coefficient and entropy_coefficient >= 0, both off at 0.

    Raises ConfigError for a negative coefficient, and for a correction beside a loss whose ratio is that of the episode
    to the sampling policy: the gap would be weighed twice.
    """

    loss: str
    bounds: LossSettings = field(default_factory=LossSettings)
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)
    kl_coefficient: float = 0.0
    kl_estimator: Estimator = "k2"
    entropy_coefficient: float = 0.0

    def __post_init__(self) -> None:
        for name in ("kl_coefficient", "entropy_coefficient"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)} is not a number of at least 0; 0 switches it off.")
        if self.correction.kind != "none" and needs_episode_ratio(self.loss):
            raise ConfigError(
                f"loss={self.loss} already weighs whole episodes against the sampling policy; set algorithm/correction=none."
            )

    @property
    def needs_episode_ratio(self) -> bool:
        """Whether the log-ratios of whole episodes must be known before the backward pass."""
        return needs_episode_ratio(self.loss) or self.correction.needs_episode_ratio

    @property
    def needs_reference(self) -> bool:
        return self.kl_coefficient > 0 or needs_reference(self.loss)


@dataclass(frozen=True)
class Objective:
    """terms [T], to be weighted and summed; `loss` is the token loss before anything was added; sums over tokens of the
    divergence from the reference and of tokens whose correction weight was bounded.
    """

    terms: torch.Tensor
    loss: TokenLoss
    sums: dict[str, float] = field(default_factory=dict)


def objective(
    inputs: LossInputs,
    settings: ObjectiveSettings,
    entropy: torch.Tensor,
    episode_tokens: torch.Tensor | None = None,
) -> Objective:
    """The terms of every token. entropy [T] of the policy's distribution, with gradient when it is rewarded.

    The divergence is weighted by the token's ratio to the sampling policy, or by its correction, so that it stays that
    of the current policy off policy. Raises LearnerError when a reference is needed and missing.
    """
    if settings.needs_reference and inputs.reference_logprobs is None:
        raise LearnerError(
            f"loss={settings.loss} with kl_coefficient={settings.kl_coefficient} needs learner.reference."
        )
    now = inputs.logprobs.detach()
    weight = bounded = None
    if settings.correction.kind != "none":
        proximal = now if inputs.proximal_logprobs is None else inputs.proximal_logprobs
        weight, bounded = correction_weights(
            proximal, inputs.behaviour_logprobs, settings.correction, inputs.episode_log_ratio, episode_tokens
        )
        inputs = replace(inputs, proximal_logprobs=proximal)
    result = get_loss(settings.loss)(inputs, settings.bounds)
    if weight is None:
        terms = result.terms
    else:
        terms = weight * result.terms
        # The loss compares with the proximal policy, which is never missing.
        result = replace(result, num_missing_behaviour=int(torch.isnan(inputs.behaviour_logprobs).sum()))
    sums = {} if bounded is None else {"correction_bounded": float(bounded.sum())}
    if inputs.reference_logprobs is not None:
        divergence = kl_estimate(inputs.logprobs, inputs.reference_logprobs, settings.kl_estimator)
        sums["reference_kl"] = float(divergence.detach().sum())
        if settings.kl_coefficient:
            gap = importance_ratio(inputs)[0].detach() if weight is None else weight
            terms = terms + settings.kl_coefficient * gap * divergence
    if settings.entropy_coefficient:
        terms = terms - settings.entropy_coefficient * entropy
    return Objective(terms, result, sums)
