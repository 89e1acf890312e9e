"""Unclipped importance-weighted policy gradient; at a lag of several steps prefer a clipped loss."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LossInputs, LossSettings, TokenLoss, importance_ratio

DEFAULTS = LossSettings()


def loss(inputs: LossInputs, settings: LossSettings) -> TokenLoss:
    """-ratio A per token. The clip settings do not apply and nothing counts as clipped."""
    ratio, missing = importance_ratio(inputs)
    return TokenLoss(-ratio * inputs.advantages, torch.zeros_like(ratio, dtype=torch.bool), ratio.detach(), missing)
