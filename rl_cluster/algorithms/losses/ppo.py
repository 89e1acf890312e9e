"""Clipped surrogate (PPO, 1707.06347) with absolute ratio bounds and the optional dual clip (1912.09729)."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LossInputs, LossSettings, TokenLoss, importance_ratio

DEFAULTS = LossSettings(clip_low=0.8, clip_high=1.2)


def loss(inputs: LossInputs, settings: LossSettings) -> TokenLoss:
    """-min(ratio A, clip(ratio, low, high) A) per token; with dual clip c the term is at most -c A where A < 0.

    `clipped` marks the tokens whose gradient the clip removes: (A > 0, ratio > high),
    (A < 0, ratio < low), and (A < 0, ratio > c).
    """
    ratio, missing = importance_ratio(inputs)
    advantages = inputs.advantages
    fixed = ratio.detach()
    bound = torch.clamp(fixed, settings.clip_low, settings.clip_high)
    clipped = ((advantages > 0) & (fixed > settings.clip_high)) | ((advantages < 0) & (fixed < settings.clip_low))
    if settings.dual_clip is not None:
        runaway = (advantages < 0) & (fixed > settings.dual_clip)
        bound = torch.where(runaway, torch.full_like(bound, settings.dual_clip), bound)
        clipped = clipped | runaway
    return TokenLoss(-torch.where(clipped, bound, ratio) * advantages, clipped, fixed, missing)
