"""Reverse divergence from a teacher on the policy's own samples (on-policy distillation; MiniLLM, 2306.08543)."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LossInputs, LossSettings, TokenLoss, importance_ratio
from rl_cluster.errors import LearnerError

DEFAULTS = LossSettings(clip_low=0.0, clip_high=5.0)
NEEDS_REFERENCE = True


def loss(inputs: LossInputs, settings: LossSettings) -> TokenLoss:
    """stop_gradient(clip(ratio, low, high) (lt - lr)) lt per token: its mean gradient is that of KL(policy || teacher).

    The teacher's log-probs are those of the reference (learner.reference). Rewards do not matter: the advantage, which
    is not 0 only on tokens that are trained, is not read.

    Raises LearnerError when there is no teacher.
    """
    if inputs.reference_logprobs is None:
        raise LearnerError("distillation needs a teacher; set learner.reference to its folder or hub id.")
    ratio, missing = importance_ratio(inputs)
    ratio = ratio.detach()
    clipped = (ratio < settings.clip_low) | (ratio > settings.clip_high)
    weight = torch.clamp(ratio, settings.clip_low, settings.clip_high)
    gap = (inputs.logprobs - inputs.reference_logprobs).detach()
    return TokenLoss(weight * gap * inputs.logprobs, clipped, ratio, missing)
