"""What a learner rank must know, as plain values; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters on all linear layers of the body; rank 0 means full fine-tuning. `sync`: whether a snapshot holds the
    "merged" model or the "adapter" alone."""

    rank: int = 0
    alpha: int = 64
    dropout: float = 0.0
    sync: str = "merged"


@dataclass(frozen=True)
class LearnerSettings:
    """One rank of the learner group. Learning rates are per optimiser step; `micro_batch_tokens` counts positions."""

    model_path: str
    learning_rate: float
    schedule: str
    lr_warmup_steps: int
    total_steps: int
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    weight_decay: float
    grad_clip_norm: float
    zero_stage: int
    micro_batch_tokens: int
    share_prefix: bool
    gradient_checkpointing: bool
    dtype: str
    device: str
    temperature: float
    lora: LoraSettings
    num_threads: int
    seed: int
    rendezvous_timeout_s: float


@dataclass(frozen=True)
class UpdateSettings:
    """One update: the loss by name with its bounds, how token terms become one number, and what is added to them.

    See rl_cluster.algorithms.objective for the meaning of corrections and coefficients.
    """

    loss: str
    clip_low: float
    clip_high: float
    dual_clip: float | None
    aggregation: str
    max_episode_tokens: int
    correction_kind: str = "none"
    correction_level: str = "token"
    correction_low: float = 0.5
    correction_high: float = 2.0
    kl_coefficient: float = 0.0
    kl_estimator: str = "k2"
    entropy_coefficient: float = 0.0


def learning_rate_factor(schedule: str, step: int, total_steps: int, warmup_steps: int) -> float:
    """The factor on the learning rate for 0-based `step`: linear warm-up, then constant, linear or cosine to a tenth."""
    import math

    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if schedule == "linear":
        return 1.0 - 0.9 * progress
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * progress))
