"""Weights for the gap between the policy that sampled (the engine, some steps ago) and the one that is trained.

With a correction the loss takes its ratio against the proximal policy, the learner's own log-probs when the step
starts, and every term is multiplied by a weight made of exp(lp - lb) (decoupled PPO, 2110.00641; truncated importance
sampling, Yao et al. 2025; masked, Liu et al. 2025). The weight never multiplies a ratio that was already taken against
the behaviour policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from rl_cluster.algorithms.types import LOG_RATIO_LIMIT
from rl_cluster.errors import ConfigError

KINDS = ("none", "truncate", "mask")
LEVELS = ("token", "episode_mean", "episode_sum")


@dataclass(frozen=True)
class CorrectionSettings:
    """kind `truncate`: min(w, high); `mask`: w inside [low, high], else 0. level: w of the token itself, or one for the
    episode, exp of the mean or of the sum of its log-ratios (the sum punishes length).
    """

    kind: Literal["none", "truncate", "mask"] = "none"
    level: Literal["token", "episode_mean", "episode_sum"] = "token"
    low: float = 0.5
    high: float = 2.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.level not in LEVELS:
            raise ConfigError(
                f"correction.kind={self.kind!r}, correction.level={self.level!r}: choose a kind of {', '.join(KINDS)} and a level of "
                f"{', '.join(LEVELS)}."
            )
        if not 0 <= self.low < self.high < math.inf:
            raise ConfigError(
                f"correction.low={self.low} and correction.high={self.high} are no band of weights; give 0 <= low < high, such as 0.5 and 2."
            )

    @property
    def needs_episode_ratio(self) -> bool:
        """Whether whole episodes must be seen before the first term is computed."""
        return self.kind != "none" and self.level != "token"


def correction_weights(
    proximal_logprobs: torch.Tensor,
    behaviour_logprobs: torch.Tensor,
    settings: CorrectionSettings,
    episode_log_ratio: torch.Tensor | None = None,
    episode_tokens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [T] without gradient, and which tokens the bound changed [T] bool.

    episode_log_ratio [T], the mean of lp - lb over the token's episode, and episode_tokens [T] are needed by the levels
    that look at episodes. A behaviour log-prob that is NaN counts as equal to the proximal one.
    """
    if settings.kind == "none":
        return torch.ones_like(proximal_logprobs), torch.zeros_like(proximal_logprobs, dtype=torch.bool)
    if settings.level == "token":
        gap = proximal_logprobs - behaviour_logprobs
        log_weight = torch.where(torch.isnan(gap), torch.zeros_like(gap), gap)
    else:
        assert episode_log_ratio is not None
        assert episode_tokens is not None
        log_weight = episode_log_ratio * (episode_tokens if settings.level == "episode_sum" else 1)
    weight = torch.exp(torch.clamp(log_weight, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).detach()
    if settings.kind == "truncate":
        return torch.clamp(weight, max=settings.high), weight > settings.high
    outside = (weight < settings.low) | (weight > settings.high)
    return torch.where(outside, torch.zeros_like(weight), weight), outside
