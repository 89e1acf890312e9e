"""Unclipped importance-weighted policy gradient; at a lag of several steps prefer a clipped loss."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LossSettings, TokenLoss, importance_ratio

DEFAULTS = LossSettings()


def loss(
    logprobs: torch.Tensor, behaviour_logprobs: torch.Tensor, advantages: torch.Tensor, settings: LossSettings
) -> TokenLoss:
    """-ratio A per token; all tensors [T]. The clip settings do not apply and nothing counts as clipped."""
    ratio, missing = importance_ratio(logprobs, behaviour_logprobs)
    return TokenLoss(-ratio * advantages, torch.zeros_like(ratio, dtype=torch.bool), ratio.detach(), missing)
