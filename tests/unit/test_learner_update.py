"""One update of a learner rank with real torch and DeepSpeed on a tiny model, against independent computations in float64.

Everything runs in one process beside the tests, since DeepSpeed leaves its mark on the process that it runs in.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_cluster.errors import LearnerError, SamplerDriftError
from rl_cluster.learning.drift_alarm import check_drift
from rl_cluster.learning.settings import LoraSettings
from rl_cluster.sequences.row import TrainingRow
from tests.helpers.tiny_learner import (
    UPDATE,
    Processes,
    expected_gradients,
    first_step,
    largest_gap,
    learner_rank,
    make_rows,
    make_rows_alike,
    parameters,
)

pytestmark = pytest.mark.cluster

DEADLINE_S = 120.0
LORA = LoraSettings(rank=4, alpha=8)
Weights = dict[str, np.ndarray]


def one_update(
    rank: int, world: int, port: int, model: Path, rows: list[TrainingRow], changes: dict[str, Any], update: Any
) -> tuple[Weights, Weights, dict[str, float]]:
    with learner_rank(model, rank, world, port, **changes) as learner:
        before = parameters(learner)
        metrics = learner.update(rows, update)
        return before, parameters(learner), metrics


def refused_update(rank: int, world: int, port: int, model: Path, rows: list[TrainingRow]) -> tuple[str, int, bool]:
    with learner_rank(model, rank, world, port) as learner:
        before = parameters(learner)
        try:
            learner.update(rows, UPDATE)
        except LearnerError as error:
            return str(error), learner.completed_steps, largest_gap(before, parameters(learner)) == 0
        return "", learner.completed_steps, False


def reset_then_update(rank: int, world: int, port: int, model: Path, reset: bool) -> Weights:
    with learner_rank(model, rank, world, port, learning_rate=1e-3, adam_eps=1e-8) as learner:
        learner.update(make_rows(), UPDATE)
        if reset:
            learner.reset_optimizer()
        before = parameters(learner)
        learner.update(make_rows(seed=1), UPDATE)
        after = parameters(learner)
        return {name: after[name] - before[name] for name in after}


CHANGES: list[dict[str, Any]] = [{}, {"share_prefix": True}, {"temperature": 0.7}, {"micro_batch_tokens": 48}]
STAGES: list[dict[str, Any]] = [{"zero_stage": stage, "micro_batch_tokens": 48} for stage in (1, 2, 3)]


@pytest.mark.parametrize(
    ("tied", "changes"),
    [(tied, changes) for tied in (True, False) for changes in CHANGES] + [(True, changes) for changes in STAGES],
)
def test_update_importance_sampling_takes_the_step_of_plain_pytorch(
    process: Processes, models: dict[bool, Path], tied: bool, changes: dict[str, Any]
) -> None:
    rows = make_rows()
    ((before, after, metrics),) = process.call(DEADLINE_S, one_update, models[tied], rows, changes, UPDATE)
    loss, gradients = expected_gradients(models[tied], rows, changes.get("temperature", 1.0))
    assert metrics["learner/loss"] == pytest.approx(loss, rel=1e-4)
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
    assert metrics["learner/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert after.keys() == gradients.keys()
    for name, gradient in gradients.items():
        step = first_step(gradient)
        np.testing.assert_allclose(
            before[name] - after[name], step, atol=1e-4 * np.abs(step).max(), rtol=0, err_msg=name
        )


def _row_per_turn(row: TrainingRow) -> list[TrainingRow]:
    """What a learner trains that does not merge: each run of sampled tokens behind all that came before it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.loss_mask.astype(np.int8), [0]])))
    turns = []
    for start, end in edges.reshape(-1, 2):
        mask = np.zeros(end, bool)
        mask[start:] = True
        turns.append(
            replace(
                row,
                token_ids=row.token_ids[:end],
                loss_mask=mask,
                behaviour_logprobs=np.where(mask, row.behaviour_logprobs[:end], 0),
                weight_versions=np.where(mask, row.weight_versions[:end], -1),
                advantages=np.where(mask, row.advantages[:end], 0),
                turn_index=row.turn_index[:end],
            )
        )
    return turns


@pytest.mark.parametrize("changes", [{}, {"share_prefix": True}, {"lora": LORA}])
def test_update_merged_rows_take_the_step_of_a_row_per_turn(
    process: Processes, models: dict[bool, Path], changes: dict[str, Any]
) -> None:
    merged = make_rows(per_group=4)
    split = [turn for row in merged for turn in _row_per_turn(row)]
    assert len(split) > 3 * len(merged)
    results = [process.call(DEADLINE_S, one_update, models[True], rows, changes, UPDATE)[0] for rows in (merged, split)]
    (before, one, metrics), (_, other, metrics_of_turns) = results
    assert metrics["learner/tokens"] == metrics_of_turns["learner/tokens"]
    assert metrics["learner/grad_norm"] == pytest.approx(metrics_of_turns["learner/grad_norm"], rel=1e-5)
    assert largest_gap(before, one) > 1e-4
    for name in one:
        step = before[name] - one[name]
        np.testing.assert_allclose(
            before[name] - other[name], step, atol=1e-4 * np.abs(step).max() + 1e-8, rtol=0, err_msg=name
        )


@pytest.mark.parametrize("lora", [LoraSettings(), LORA])
def test_update_shared_prefix_gives_the_same_parameters(
    process: Processes, models: dict[bool, Path], lora: LoraSettings
) -> None:
    rows = make_rows(groups=3, per_group=4, prefix=60)
    results = [
        process.call(DEADLINE_S, one_update, models[True], rows, {"share_prefix": share, "lora": lora}, UPDATE)[0]
        for share in (False, True)
    ]
    (before, alone, metrics_alone), (_, shared, metrics_shared) = results
    assert metrics_shared["learner/positions"] < metrics_alone["learner/positions"]
    assert largest_gap(before, alone) > 1e-4
    for name in alone:
        np.testing.assert_allclose(shared[name], alone[name], rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("alike", [1, 6, 30])
def test_update_rows_that_sampled_alike_are_computed_once_and_take_the_step_of_plain_pytorch(
    process: Processes, models: dict[bool, Path], alike: int
) -> None:
    rows = make_rows_alike(alike)
    loss, gradients = expected_gradients(models[True], rows)
    positions = []
    for share in (False, True):
        changes = {"share_prefix": share, "micro_batch_tokens": 128}
        ((before, after, metrics),) = process.call(DEADLINE_S, one_update, models[True], rows, changes, UPDATE)
        positions.append(metrics["learner/positions"])
        assert metrics["learner/tokens"] == sum(row.num_trained for row in rows)
        assert metrics["learner/loss"] == pytest.approx(loss, rel=1e-4)
        for name, gradient in gradients.items():
            step = first_step(gradient)
            np.testing.assert_allclose(
                before[name] - after[name], step, atol=1e-4 * np.abs(step).max(), rtol=0, err_msg=name
            )
    assert positions[1] < 0.65 * positions[0]


def test_update_rows_without_advantage_are_skipped_yet_count(process: Processes, models: dict[bool, Path]) -> None:
    rows = make_rows()
    for row in rows[2:4]:
        row.advantages = np.zeros_like(row.advantages)
    ((before, after, metrics),) = process.call(DEADLINE_S, one_update, models[False], rows, {}, UPDATE)
    loss, gradients = expected_gradients(models[False], rows)
    assert metrics["learner/skipped_rows"] == 2
    assert metrics["learner/tokens"] == sum(row.num_trained for row in rows if np.any(row.advantages))
    assert metrics["learner/loss"] == pytest.approx(loss, rel=1e-4)
    name = "model.layers.0.mlp.up_proj.weight"
    step = first_step(gradients[name])
    np.testing.assert_allclose(before[name] - after[name], step, atol=1e-4 * np.abs(step).max(), rtol=0)


def test_update_no_advantage_at_all_changes_nothing_and_is_a_step(process: Processes, models: dict[bool, Path]) -> None:
    rows = make_rows()
    for row in rows:
        row.advantages = np.zeros_like(row.advantages)
    ((before, after, metrics),) = process.call(DEADLINE_S, one_update, models[False], rows, {}, UPDATE)
    assert largest_gap(before, after) == 0
    assert metrics["learner/loss"] == metrics["learner/grad_norm"] == 0
    assert metrics["learner/skipped_rows"] == len(rows)


def test_update_no_advantage_at_all_still_tells_a_sampler_of_other_weights(
    process: Processes, models: dict[bool, Path]
) -> None:
    """Some rows of the learner's own version are scored, those of others are not."""
    rows = make_rows()
    for row in rows:
        row.advantages = np.zeros_like(row.advantages)
    for row in rows[1:]:
        row.weight_versions = np.where(row.loss_mask, -1, row.weight_versions).astype(np.int32)
    ((_, _, metrics),) = process.call(DEADLINE_S, one_update, models[False], rows, {}, UPDATE)
    assert metrics["learner/own_version_tokens"] == metrics["learner/tokens"] == rows[0].num_trained
    with pytest.raises(SamplerDriftError):
        check_drift(metrics, 0.05)


def test_update_clipped_gradient_has_the_allowed_norm(process: Processes, models: dict[bool, Path]) -> None:
    rows = make_rows()
    ((before, after, metrics),) = process.call(
        DEADLINE_S, one_update, models[False], rows, {"grad_clip_norm": 0.01, "adam_eps": 1000.0}, UPDATE
    )
    assert metrics["learner/grad_norm"] > 0.1
    moved = math.sqrt(sum(float(((before[name] - after[name]) ** 2).sum()) for name in before))
    assert moved * 1000 == pytest.approx(0.01, rel=2e-2)


def test_update_missing_behaviour_logprobs_are_on_policy(process: Processes, models: dict[bool, Path]) -> None:
    rows = make_rows()
    for row in rows:
        row.behaviour_logprobs = np.where(row.loss_mask, np.nan, 0).astype(np.float32)
    ((_, _, metrics),) = process.call(DEADLINE_S, one_update, models[False], rows, {}, UPDATE)
    assert metrics["learner/missing_logprobs"] == sum(row.num_trained for row in rows)
    assert metrics["learner/ratio_mean"] == 1
    assert metrics["learner/sampler_gap_max"] == 0


def test_update_without_a_trainable_token_names_the_trajectory(process: Processes, models: dict[bool, Path]) -> None:
    rows = make_rows()
    for row in rows:
        row.loss_mask = np.zeros_like(row.loss_mask)
    ((message, steps, unchanged),) = process.call(DEADLINE_S, refused_update, models[True], rows)
    assert "No token of the batch can be trained" in message
    assert "t0-0" in message
    assert (steps, unchanged) == (0, True)


def test_update_loss_that_is_not_finite_is_a_learner_error(process: Processes, models: dict[bool, Path]) -> None:
    rows = make_rows()
    rows[0].advantages = np.where(rows[0].loss_mask, np.inf, 0).astype(np.float32)
    ((message, steps, unchanged),) = process.call(DEADLINE_S, refused_update, models[True], rows)
    assert "is not finite; lower learner.learning_rate or resume" in message
    assert (steps, unchanged) == (0, True)


def test_update_row_longer_than_the_models_positions_names_the_trajectory(
    process: Processes, models: dict[bool, Path]
) -> None:
    rows = make_rows(groups=1, per_group=2, prefix=250)
    ((message, steps, unchanged),) = process.call(DEADLINE_S, refused_update, models[True], rows)
    assert message.startswith("Trajectory t0-0 has a row of ")
    assert "but the model has 256 positions" in message
    assert (steps, unchanged) == (0, True)


@pytest.mark.parametrize("changes", [{}, {"lora": LORA, "learning_rate": 50.0}])
def test_update_gradient_checkpointing_gives_the_same_parameters(
    process: Processes, models: dict[bool, Path], changes: dict[str, Any]
) -> None:
    results = [
        process.call(
            DEADLINE_S, one_update, models[True], make_rows(), {**changes, "gradient_checkpointing": on}, UPDATE
        )
        for on in (False, True)
    ]
    (before, plain, _), (_, checkpointed, _) = results[0][0], results[1][0]
    assert largest_gap(before, plain) > 1e-3
    assert largest_gap(plain, checkpointed) < 1e-5


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_update_bfloat16_sums_many_micro_batches_in_float32(
    process: Processes, models: dict[bool, Path], stage: int
) -> None:
    """Two large opposite gradients around thirty small ones: a sum in bfloat16 would lose the small ones."""
    rows = [deepcopy(make_rows(groups=1, per_group=1, prefix=4)[0]) for _ in range(32)]
    for index, (row, advantage) in enumerate(zip(rows, [1000.0, *[1.0] * 30, -1000.0], strict=True)):
        row.trajectory_id = row.group_id = f"t{index:02d}"
        row.advantages = np.where(row.loss_mask, advantage, 0).astype(np.float32)
    changes = {"dtype": "bfloat16", "zero_stage": stage, "micro_batch_tokens": 1, "learning_rate": 100.0}
    ((before, after, _),) = process.call(DEADLINE_S, one_update, models[True], rows, changes, UPDATE)
    _, gradients = expected_gradients(models[True], rows)
    step = np.concatenate([first_step(gradients[name]).ravel() for name in sorted(gradients)])
    moved = np.concatenate([(before[name] - after[name]).ravel() for name in sorted(gradients)])
    assert float(moved @ step / (np.linalg.norm(moved) * np.linalg.norm(step))) > 0.99


def test_reset_optimizer_forgets_the_moments(process: Processes, models: dict[bool, Path]) -> None:
    """After a reset the next step is a first step of Adam: nearly the learning rate, wherever a gradient is."""
    ((fresh,),) = [process.call(DEADLINE_S, reset_then_update, models[False], True)]
    ((used,),) = [process.call(DEADLINE_S, reset_then_update, models[False], False)]
    name = "model.layers.1.self_attn.q_proj.weight"
    assert np.quantile(np.abs(fresh[name]), 0.1) == pytest.approx(1e-3, rel=1e-2)
    assert np.quantile(np.abs(used[name]), 0.1) < 0.9e-3
