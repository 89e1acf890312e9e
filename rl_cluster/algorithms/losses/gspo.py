"""One ratio per episode, clipped as in PPO (GSPO, 2507.18071). Use with `aggregation=seq_mean_token_mean`."""

from __future__ import annotations

import torch

from rl_cluster.algorithms.types import LOG_RATIO_LIMIT, LossInputs, LossSettings, TokenLoss
from rl_cluster.errors import LearnerError

DEFAULTS = LossSettings(clip_low=1 - 3e-4, clip_high=1 + 4e-4)
NEEDS_EPISODE_RATIO = True


def loss(inputs: LossInputs, settings: LossSettings) -> TokenLoss:
    """-min(s A, clip(s, low, high) A) per token, s = exp(mean over the episode of lt - lb).

    s is a number here and its gradient comes from the token itself, s exp(lt - stop_gradient(lt)): under
    seq_mean_token_mean that is the gradient of the episode's s, also when the episode is split into rows, and it
    allows advantages that differ by turn (the paper's GSPO-token).

    Raises LearnerError when the episodes' ratios were not computed.
    """
    if inputs.episode_log_ratio is None:
        raise LearnerError("gspo needs the log-ratio of whole episodes, which was not computed for this update.")
    advantages, logprobs = inputs.advantages, inputs.logprobs
    fixed = torch.exp(torch.clamp(inputs.episode_log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    ratio = fixed * torch.exp(logprobs - logprobs.detach())
    bound = torch.clamp(fixed, settings.clip_low, settings.clip_high)
    clipped = ((advantages > 0) & (fixed > settings.clip_high)) | ((advantages < 0) & (fixed < settings.clip_low))
    missing = int(torch.isnan(inputs.behaviour_logprobs).sum())
    return TokenLoss(-torch.where(clipped, bound, ratio) * advantages, clipped, fixed, missing)
