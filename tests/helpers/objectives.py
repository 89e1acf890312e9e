"""Objectives that look at whole episodes or at a reference, and what plain PyTorch in float64 makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_cluster.sequences.row import TrainingRow
from tests.helpers.tiny_learner import UPDATE, make_rows

Weights = dict[str, np.ndarray]
GSPO = replace(UPDATE, loss="gspo", clip_low=0.7, clip_high=1.3, aggregation="seq_mean_token_mean")
KL = replace(UPDATE, loss="ppo", clip_low=0.8, clip_high=1.2, kl_coefficient=0.3, kl_estimator="k2")
TEACHER = replace(UPDATE, loss="distillation", clip_low=0.0, clip_high=1e9)
ENTROPY = replace(UPDATE, entropy_coefficient=0.2)
EPISODE_WEIGHTS = replace(
    UPDATE, loss="policy_gradient", correction_kind="truncate", correction_level="episode_mean", correction_high=1.1
)

OBJECTIVES = [
    ("gspo", GSPO, False),
    ("kl", KL, True),
    ("distillation", TEACHER, True),
    ("entropy", ENTROPY, False),
    ("episode_weights", EPISODE_WEIGHTS, False),
]
"""Name, settings of the update, whether it needs a reference."""


def split_rows() -> list[TrainingRow]:
    """Two episodes of two rows each and one of one: an episode is more than a row."""
    rows = make_rows(groups=1, per_group=5)
    for index, row in enumerate(rows):
        row.trajectory_id = f"t{index // 2}"
        row.advantages = np.where(row.loss_mask, [0.7, -0.4, 0.2][index // 2], 0).astype(np.float32)
    return rows


def trained(policy: Any, row: TrainingRow) -> tuple[Any, Any]:
    """log-probs and entropies of a row's trained tokens, float64."""
    import torch

    ids = torch.tensor(row.token_ids, dtype=torch.long)
    every = torch.log_softmax(policy(input_ids=ids[None]).logits[0, :-1], -1)
    mask = torch.tensor(row.loss_mask[1:])
    entropy = -(every.exp() * every).sum(-1)
    return every.gather(-1, ids[1:, None])[:, 0][mask], entropy[mask]


def objective_gradients(model: Path, rows: list[TrainingRow], goal: str, reference: Path | None = None) -> Weights:
    """Gradients of the objective as its paper writes it, everything in one graph."""
    import torch
    from transformers import AutoModelForCausalLM

    def load(folder: Path) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")

    policy, frozen = load(model), load(reference) if reference is not None else None
    episodes: dict[str, list[tuple[Any, Any, Any, Any, Any]]] = {}
    for row in rows:
        now, entropy = trained(policy, row)
        old = torch.tensor(row.behaviour_logprobs[row.loss_mask], dtype=torch.float64)
        advantage = torch.tensor(row.advantages[row.loss_mask], dtype=torch.float64)
        other = trained(frozen, row)[0].detach() if frozen is not None else old
        episodes.setdefault(row.trajectory_id, []).append((now, old, advantage, other, entropy))
    joined = [[torch.cat(parts) for parts in zip(*pieces, strict=True)] for pieces in episodes.values()]
    count = sum(len(now) for now, *_ in joined)
    loss = torch.zeros((), dtype=torch.float64)
    for now, old, advantage, other, entropy in joined:
        ratio = torch.exp(now - old)
        if goal == "gspo":
            s = torch.exp((now - old).mean())
            terms = torch.minimum(s * advantage, torch.clamp(s, 0.7, 1.3) * advantage)
            loss = loss - terms.mean() / len(joined)
        elif goal == "kl":
            clipped = torch.minimum(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage)
            loss = loss + (0.3 * ratio.detach() * (now - other) ** 2 / 2 - clipped).sum() / count
        elif goal == "distillation":
            loss = loss + (ratio.detach() * (now - other).detach() * now).sum() / count
        elif goal == "entropy":
            loss = loss - (ratio * advantage + 0.2 * entropy).sum() / count
        else:
            weight = torch.clamp(torch.exp((now - old).mean()).detach(), max=1.1)
            loss = loss - (weight * advantage * now).sum() / count
    loss.backward()
    return {name: p.grad.numpy() for name, p in policy.named_parameters() if p.grad is not None}
