"""Objectives that look at whole episodes or at a reference, on a real learner rank against plain PyTorch in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_cluster.errors import LearnerError
from rl_cluster.sequences.row import TrainingRow
from tests.helpers.tiny_learner import (
    UPDATE,
    Processes,
    first_step,
    learner_rank,
    make_rows,
    parameters,
    save_tiny_model,
)

pytestmark = pytest.mark.cluster

DEADLINE_S = 120.0
Weights = dict[str, np.ndarray]
GSPO = replace(UPDATE, loss="gspo", clip_low=0.7, clip_high=1.3, aggregation="seq_mean_token_mean")
KL = replace(UPDATE, loss="ppo", clip_low=0.8, clip_high=1.2, kl_coefficient=0.3, kl_estimator="k2")
TEACHER = replace(UPDATE, loss="distillation", clip_low=0.0, clip_high=1e9)
ENTROPY = replace(UPDATE, entropy_coefficient=0.2)
EPISODE_WEIGHTS = replace(
    UPDATE, loss="policy_gradient", correction_kind="truncate", correction_level="episode_mean", correction_high=1.1
)


@pytest.fixture(scope="module")
def process() -> Iterator[Processes]:
    processes = Processes(1)
    try:
        yield processes
    finally:
        processes.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_model(folder, tied=True)
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The same model, moved."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("teacher")
    moved = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.mul_(1.05)
    moved.save_pretrained(folder)
    return folder


def split_rows() -> list[TrainingRow]:
    """Two episodes of two rows each and one of one: an episode is more than a row."""
    rows = make_rows(groups=1, per_group=5)
    for index, row in enumerate(rows):
        row.trajectory_id = f"t{index // 2}"
        row.advantages = np.where(row.loss_mask, [0.7, -0.4, 0.2][index // 2], 0).astype(np.float32)
    return rows


def update(
    rank: int, world: int, port: int, model: Path, rows: list[TrainingRow], settings: Any, reference: Path | None
) -> tuple[Weights, Weights, dict[str, float]]:
    with learner_rank(model, rank, world, port, micro_batch_tokens=48) as learner:
        if reference is not None:
            learner.set_reference(str(reference))
        before = parameters(learner)
        metrics = learner.update(rows, settings)
        return before, parameters(learner), metrics


def gaps(rank: int, world: int, port: int, model: Path, rows: list[TrainingRow], reference: Path) -> dict[int, Any]:
    with learner_rank(model, rank, world, port) as learner:
        learner.set_reference(str(reference))
        return learner.reference_gaps(rows)


def refused(rank: int, world: int, port: int, model: Path, settings: Any) -> str:
    with learner_rank(model, rank, world, port) as learner:
        try:
            learner.update(make_rows(), settings)
        except LearnerError as error:
            return str(error)
        return ""


def trained(policy: Any, row: TrainingRow) -> tuple[Any, Any]:
    """log-probs and entropies of a row's trained tokens, float64."""
    import torch

    ids = torch.tensor(row.token_ids, dtype=torch.long)
    every = torch.log_softmax(policy(input_ids=ids[None]).logits[0, :-1], -1)
    mask = torch.tensor(row.loss_mask[1:])
    entropy = -(every.exp() * every).sum(-1)
    return every.gather(-1, ids[1:, None])[:, 0][mask], entropy[mask]


def expected(model: Path, rows: list[TrainingRow], goal: str, reference: Path | None = None) -> Weights:
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


@pytest.mark.parametrize(
    ("goal", "settings", "needs_reference"),
    [
        ("gspo", GSPO, False),
        ("kl", KL, True),
        ("distillation", TEACHER, True),
        ("entropy", ENTROPY, False),
        ("episode_weights", EPISODE_WEIGHTS, False),
    ],
)
def test_update_objective_takes_the_step_of_plain_pytorch(
    process: Processes, model: Path, teacher: Path, goal: str, settings: Any, needs_reference: bool
) -> None:
    rows, reference = split_rows(), teacher if needs_reference else None
    ((before, after, _),) = process.call(DEADLINE_S, update, model, rows, settings, reference)
    gradients = expected(model, rows, goal, reference)
    for name, gradient in gradients.items():
        step = first_step(gradient)
        np.testing.assert_allclose(
            before[name] - after[name], step, atol=2e-4 * np.abs(step).max(), rtol=0, err_msg=name
        )


def test_reference_gaps_are_sampler_minus_reference_on_trained_tokens(
    process: Processes, model: Path, teacher: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    rows = split_rows()
    (found,) = process.call(DEADLINE_S, gaps, model, rows, teacher)
    frozen = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float64, attn_implementation="eager")
    assert sorted(found) == list(range(len(rows)))
    for index, row in enumerate(rows):
        with torch.no_grad():
            other = trained(frozen, row)[0].numpy()
        np.testing.assert_allclose(found[index], row.behaviour_logprobs[row.loss_mask] - other, atol=1e-4)


@pytest.mark.parametrize("settings", [KL, TEACHER])
def test_update_reference_missing_is_refused_before_anything_moves(
    process: Processes, model: Path, settings: Any
) -> None:
    (message,) = process.call(DEADLINE_S, refused, model, settings)
    assert "learner.reference" in message
