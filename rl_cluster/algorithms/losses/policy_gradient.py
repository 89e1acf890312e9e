"""Plain policy gradient, -A lt (REINFORCE; the loss of GPG, 2504.02546). Off policy it wants a correction."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LossInputs, LossSettings, TokenLoss, importance_ratio

DEFAULTS = LossSettings()


def loss(inputs: LossInputs, settings: LossSettings) -> TokenLoss:
    """-A lt per token: the ratio is reported and does not weigh. The clip settings do not apply."""
    ratio, missing = importance_ratio(inputs)
    ratio = ratio.detach()
    return TokenLoss(-inputs.advantages * inputs.logprobs, torch.zeros_like(ratio, dtype=torch.bool), ratio, missing)
