"""Clipped importance weight on a plain policy gradient (CISPO: MiniMax-M1, 2506.13585, equations 4 and 5)."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LossSettings, TokenLoss, importance_ratio

# No lower bound: a floor would lift tokens that the policy has already left back to full strength.
DEFAULTS = LossSettings(clip_low=0.0, clip_high=5.0)


def loss(
    logprobs: torch.Tensor, behaviour_logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
) -> TokenLoss:
    """-stop_gradient(clip(ratio, low, high)) A lt per token; all tensors [T].

    Clipped tokens keep a gradient, with the bound as its weight. The value scales with lt and shows no progress.
    """
    ratio, missing = importance_ratio(logprobs.detach(), behaviour_logprobs)
    clipped = (ratio < settings.clip_low) | (ratio > settings.clip_high)
    weight = torch.clamp(ratio, settings.clip_low, settings.clip_high)
    return TokenLoss(-weight * advantages * logprobs, clipped, ratio, missing)
