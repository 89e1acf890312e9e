"""Clipped importance weight on a plain policy gradient (CISPO: MiniMax-M1, 2506.13585, equations 4 and 5)."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LossInputs, LossSettings, TokenLoss, importance_ratio

# No lower bound: a floor would lift tokens that the policy has already left back to full strength.
DEFAULTS = LossSettings(clip_low=0.0, clip_high=5.0)


def loss(inputs: LossInputs, settings: LossSettings) -> TokenLoss:
    """-stop_gradient(clip(ratio, low, high)) A lt per token.

    Clipped tokens keep a gradient, with the bound as its weight. The value scales with lt and shows no progress.
    """
    ratio, missing = importance_ratio(inputs)
    ratio = ratio.detach()
    clipped = (ratio < settings.clip_low) | (ratio > settings.clip_high)
    weight = torch.clamp(ratio, settings.clip_low, settings.clip_high)
    return TokenLoss(-weight * inputs.advantages * inputs.logprobs, clipped, ratio, missing)
