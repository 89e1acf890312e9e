"""Weighted negative log-likelihood, for the supervised warm-up on demonstrations."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LossInputs, LossSettings, TokenLoss

DEFAULTS = LossSettings()


def loss(inputs: LossInputs, settings: LossSettings) -> TokenLoss:
    """-A lt per token, where A is the token's weight (1 for plain cross-entropy).

    There is no behaviour policy: its log-probs are not read, the ratio is 1 and nothing is clipped or missing.
    """
    ratio = torch.ones_like(inputs.logprobs, requires_grad=False)
    return TokenLoss(-inputs.advantages * inputs.logprobs, torch.zeros_like(ratio, dtype=torch.bool), ratio)
