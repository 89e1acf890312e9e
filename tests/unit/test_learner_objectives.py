"""Objectives that look at whole episodes or at a reference, on a real learner rank against plain PyTorch in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_cluster.errors import LearnerError
from rl_cluster.sequences.row import TrainingRow
from tests.helpers.objectives import KL, OBJECTIVES, TEACHER, Weights, objective_gradients, split_rows, trained
from tests.helpers.tiny_learner import (
    Processes,
    first_step,
    learner_rank,
    make_rows,
    parameters,
    save_moved_model,
    save_tiny_model,
)

pytestmark = pytest.mark.cluster

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_model(folder, tied=True)
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    save_moved_model(model, folder)
    return folder


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


@pytest.mark.parametrize(("goal", "settings", "needs_reference"), OBJECTIVES)
def test_update_objective_takes_the_step_of_plain_pytorch(
    process: Processes, model: Path, teacher: Path, goal: str, settings: Any, needs_reference: bool
) -> None:
    rows, reference = split_rows(), teacher if needs_reference else None
    ((before, after, _),) = process.call(DEADLINE_S, update, model, rows, settings, reference)
    gradients = objective_gradients(model, rows, goal, reference)
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
