"""Log-ratios of whole episodes, which a loss over episodes must know before the first backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rl_cluster.learning.policy import NO_VERSION, PolicyInputs


def episode_log_ratios(
    policy: Any, passes: Sequence[PolicyInputs], num_episodes: int, world_size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of lt - lb over the trained tokens of each episode [N], and their number [N], over all rows and ranks.

    `passes` are this rank's micro-batches, dummy ones (weight 0) included: under ZeRO-3 every pass is a collective.
    `device` is that of the ranks' collectives. A token without a behaviour log-prob counts as unchanged.
    """
    sums = torch.zeros(2, num_episodes, dtype=torch.float64)
    for inputs in passes:
        with torch.no_grad():
            logprobs, _ = policy(inputs)
        gap = logprobs - inputs.behaviour_logprobs
        gap = torch.where(torch.isnan(gap), torch.zeros_like(gap), gap).double().cpu()
        episodes, real = inputs.episodes.cpu(), inputs.versions.cpu() != NO_VERSION
        sums[0].index_add_(0, episodes[real], gap[real])
        sums[1].index_add_(0, episodes[real], torch.ones_like(gap)[real])
    if world_size > 1:
        # NCCL reduces on devices only.
        reduced = sums.to(device)
        torch.distributed.all_reduce(reduced)
        sums = reduced.cpu()
    return sums[0] / sums[1].clamp(min=1), sums[1]
