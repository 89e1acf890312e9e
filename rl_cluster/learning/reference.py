"""`ReferencePolicy`: a frozen model whose log-probs the policy is held against, or taught by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rl_cluster.learning.policy import PolicyInputs, PolicyModule


class ReferencePolicy:
    """Every rank holds the whole model in its own type; it is never trained nor sharded.

    Its tokenizer must give the policy's ids: what is scored are the policy's own tokens.
    """

    def __init__(self, load: Callable[[str], Any], folder: str, temperature: float, device: torch.device) -> None:
        self.folder = folder
        self.module = PolicyModule(load(folder).to(device), temperature).eval().requires_grad_(False)

    def logprobs(self, inputs: PolicyInputs) -> torch.Tensor:
        """log-probs [S] of the inputs' targets."""
        with torch.no_grad():
            return self.module(inputs)[0]
