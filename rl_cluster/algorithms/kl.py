"""Estimators of the divergence KL(policy || reference) on sampled tokens (Schulman 2020, "Approximating KL divergence")."""

from __future__ import annotations

from typing import Literal

import torch

from rl_cluster.algorithms.types import LOG_RATIO_LIMIT
from rl_cluster.errors import ConfigError

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs: torch.Tensor, reference_logprobs: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """With d = lt - lr: k1 = d; k2 = d^2 / 2; k3 = exp(-d) + d - 1; all [T].

    k1 and k3 have the right mean. As a loss only k2 has the right gradient on policy, and k1 none at all: it belongs
    into the reward (`advantage=reinforce_pp`).
    """
    gap = torch.clamp(logprobs - reference_logprobs, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if estimator == "k1":
        return gap
    if estimator == "k2":
        return gap * gap / 2
    if estimator == "k3":
        return torch.exp(-gap) + gap - 1
    raise ConfigError(f"kl.estimator={estimator!r} is unknown; choose k1, k2 or k3.")
