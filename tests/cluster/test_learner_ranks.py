"""Two learner ranks over gloo at every ZeRO stage: the step of one rank, whatever each of them has to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from rl_cluster.learning import policy
from rl_cluster.learning.settings import LoraSettings, UpdateSettings
from rl_cluster.sequences.row import TrainingRow
from tests.helpers.objectives import OBJECTIVES, objective_gradients, split_rows
from tests.helpers.tiny_learner import (
    UPDATE,
    VOCABULARY,
    Processes,
    expected_gradients,
    first_step,
    learner_rank,
    make_rows,
    make_rows_alike,
    parameters,
    save_moved_model,
    save_tiny_model,
)

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
START_DEADLINE_S = 120.0
Weights = dict[str, np.ndarray]


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


@pytest.fixture(scope="module")
def processes(model: Path) -> Iterator[Processes]:
    """Two processes that have met once: importing and meeting is no part of a test's deadline."""
    pair = Processes(2)
    try:
        pair.call(START_DEADLINE_S, meet, model)
        yield pair
    finally:
        pair.close()


def meet(rank: int, world: int, port: int, model: Path) -> None:
    with learner_rank(model, rank, world, port):
        pass


def update(
    rank: int,
    world: int,
    port: int,
    model: Path,
    stage: int,
    rows: list[TrainingRow],
    lora: LoraSettings,
    micro_batch_tokens: int = 48,
    share_prefix: bool = False,
) -> tuple[Weights, Weights, dict[str, float]]:
    changes = {"lora": lora, "micro_batch_tokens": micro_batch_tokens, "share_prefix": share_prefix}
    with learner_rank(model, rank, world, port, zero_stage=stage, **changes) as learner:
        before = parameters(learner)
        metrics = learner.update(rows, UPDATE)
        return before, parameters(learner), metrics


def save_publish_load(
    rank: int, world: int, port: int, model: Path, stage: int, folder: Path
) -> tuple[list[Weights], int]:
    """Gathers again and again around a save and a load, as a long run does."""
    ids = list(range(2, 30))
    with learner_rank(model, rank, world, port, zero_stage=stage) as learner:
        learner.update(make_rows(), UPDATE)
        learner.save(str(folder / "checkpoint"))
        for _ in range(50):
            learner.publish(str(folder / "snapshot.safetensors"), ids, "node")
        learner.update(make_rows(seed=1), UPDATE)
        expected = parameters(learner)
    with learner_rank(model, rank, world, port, zero_stage=stage) as learner:
        steps = learner.load(str(folder / "checkpoint"))
        learner.update(make_rows(seed=1), UPDATE)
        return [expected, parameters(learner)], steps


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [1, 5])
def test_update_two_ranks_of_unequal_work_take_the_step_of_one(
    processes: Processes, model: Path, stage: int, count: int
) -> None:
    """One row leaves a rank without work; five rows give one rank more passes than the other."""
    rows = make_rows(groups=1, per_group=count)
    results = processes.call(DEADLINE_S, update, model, stage, rows, LoraSettings())
    loss, gradients = expected_gradients(model, rows)
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    for before, after, metrics in results:
        assert after.keys() == gradients.keys()
        assert metrics["learner/loss"] == pytest.approx(loss, rel=1e-4)
        assert metrics["learner/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
        assert metrics["learner/tokens"] == sum(row.num_trained for row in rows)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(before[name] - after[name], first_step(gradient), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("stage", [0, 2])
def test_update_two_ranks_that_share_prompts_take_the_step_of_one(
    processes: Processes, model: Path, stage: int
) -> None:
    """What rows have in common is computed once; at stage 3 it is refused, since ranks would call the model unequally often."""
    rows = make_rows_alike(8)
    (_, alone, plain), _ = processes.call(DEADLINE_S, update, model, 0, rows, LoraSettings(), 128)
    _, gradients = expected_gradients(model, rows)
    for before, after, metrics in processes.call(DEADLINE_S, update, model, stage, rows, LoraSettings(), 128, True):
        assert metrics["learner/positions"] < plain["learner/positions"]
        for name, gradient in gradients.items():
            np.testing.assert_allclose(before[name] - after[name], first_step(gradient), atol=1e-5, err_msg=name)
            np.testing.assert_allclose(after[name], alone[name], atol=1e-5, err_msg=name)


def update_clipped(
    rank: int, world: int, port: int, model: Path, stage: int, rows: list[TrainingRow], clip: float
) -> tuple[Weights, Weights, dict[str, float]]:
    # With so large an epsilon the step is the gradient over it.
    with learner_rank(
        model, rank, world, port, zero_stage=stage, micro_batch_tokens=48, grad_clip_norm=clip, adam_eps=1000.0
    ) as learner:
        before = parameters(learner)
        metrics = learner.update(rows, UPDATE)
        return before, parameters(learner), metrics


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_update_two_ranks_clip_the_gradient_of_all_ranks_together(
    processes: Processes, model: Path, stage: int
) -> None:
    rows = make_rows(groups=1, per_group=5)
    _, gradients = expected_gradients(model, rows)
    norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
    clip = norm / 20
    for before, after, metrics in processes.call(DEADLINE_S, update_clipped, model, stage, rows, clip):
        assert metrics["learner/grad_norm"] == pytest.approx(norm, rel=1e-4)
        moved = float(np.sqrt(sum(((before[name] - after[name]) ** 2).sum() for name in before)))
        assert moved * 1000 == pytest.approx(clip, rel=2e-2)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_update_two_ranks_with_adapters_agree_with_stage_0(processes: Processes, model: Path, stage: int) -> None:
    rows = make_rows(groups=1, per_group=5)
    lora = LoraSettings(rank=4, alpha=8)
    (_, plain, _), _ = processes.call(DEADLINE_S, update, model, 0, rows, lora)
    for before, after, _ in processes.call(DEADLINE_S, update, model, stage, rows, lora):
        assert after.keys() == plain.keys() == before.keys()
        assert max(np.abs(after[name] - before[name]).max() for name in after) > 1e-4
        for name in plain:
            np.testing.assert_allclose(after[name], plain[name], atol=1e-5, err_msg=name)


def update_objective(
    rank: int,
    world: int,
    port: int,
    model: Path,
    stage: int,
    rows: list[TrainingRow],
    settings: UpdateSettings,
    reference: Path | None,
) -> tuple[Weights, Weights]:
    with learner_rank(model, rank, world, port, zero_stage=stage, micro_batch_tokens=48) as learner:
        if reference is not None:
            learner.set_reference(str(reference))
        before = parameters(learner)
        learner.update(rows, settings)
        return before, parameters(learner)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(("goal", "settings", "needs_reference"), OBJECTIVES)
def test_update_two_ranks_with_an_objective_over_episodes_take_the_step_of_one(
    processes: Processes,
    model: Path,
    teacher: Path,
    stage: int,
    goal: str,
    settings: UpdateSettings,
    needs_reference: bool,
) -> None:
    """An episode whose rows lie on different ranks has one ratio."""
    rows, reference = split_rows(), teacher if needs_reference else None
    gradients = objective_gradients(model, rows, goal, reference)
    assert max(np.abs(gradient).max() for gradient in gradients.values()) > 1e-3
    for before, after in processes.call(DEADLINE_S, update_objective, model, stage, rows, settings, reference):
        for name, gradient in gradients.items():
            step = first_step(gradient)
            np.testing.assert_allclose(
                before[name] - after[name], step, atol=2e-4 * np.abs(step).max() + 1e-7, rtol=0, err_msg=name
            )


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("version", [0, -2])
@pytest.mark.parametrize("goal", ["gspo", "episode_weights"])
def test_update_two_ranks_where_no_episode_has_an_advantage_is_a_step_that_moves_nothing(
    processes: Processes, model: Path, stage: int, goal: str, version: int
) -> None:
    """Also where no row was sampled by the learner's own version: no rank has a micro-batch then."""
    rows = split_rows()
    for row in rows:
        row.advantages = np.zeros_like(row.advantages)
        row.weight_versions = np.where(row.loss_mask, version, -1).astype(np.int32)
    (settings,) = (each for name, each, _ in OBJECTIVES if name == goal)
    for before, after in processes.call(DEADLINE_S, update_objective, model, stage, rows, settings, None):
        for name in before:
            np.testing.assert_array_equal(before[name], after[name], err_msg=name)


@pytest.mark.parametrize("stage", [1, 3])
def test_publish_after_save_and_load_two_ranks_go_on(
    processes: Processes, model: Path, tmp_path: Path, stage: int
) -> None:
    for (expected, after), steps in processes.call(DEADLINE_S, save_publish_load, model, stage, tmp_path):
        assert steps == 1
        for name in expected:
            np.testing.assert_allclose(after[name], expected[name], atol=1e-6, err_msg=name)
    assert (tmp_path / "snapshot.safetensors").is_file()


def save_both(rank: int, world: int, port: int, model: Path, stage: int, lora: LoraSettings, folder: Path) -> Weights:
    with learner_rank(model, rank, world, port, zero_stage=stage, lora=lora) as learner:
        learner.update(make_rows(), UPDATE)
        learner.save(str(folder))
        return parameters(learner)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("lora", [LoraSettings(), LoraSettings(rank=4, alpha=8)])
def test_export_checkpoint_of_two_ranks_is_the_model_they_hold(
    processes: Processes, model: Path, tmp_path: Path, stage: int, lora: LoraSettings
) -> None:
    from safetensors.numpy import load_file

    from rl_cluster.learning.checkpoint_export import export_checkpoint

    held, _ = processes.call(DEADLINE_S, save_both, model, stage, lora, tmp_path / "c")
    # What makes a checkpoint of the run whole, see rl_cluster.learning.checkpoint.
    assert len(list((tmp_path / "c" / "learner").glob("*optim_states.pt"))) == 2
    (tmp_path / "out").mkdir()
    export_checkpoint(tmp_path / "c", tmp_path / "out")
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == held.keys()
    for name in held:
        np.testing.assert_allclose(exported[name], held[name], atol=1e-6, err_msg=name)


def update_in_chunks(
    rank: int, world: int, port: int, model: Path, stage: int, rows: list[TrainingRow]
) -> tuple[Weights, Weights]:
    with (
        patch.object(policy, "HEAD_CHUNK_BYTES", 3 * 4 * VOCABULARY),
        learner_rank(model, rank, world, port, zero_stage=stage, micro_batch_tokens=48) as learner,
    ):
        before = parameters(learner)
        learner.update(rows, UPDATE)
        return before, parameters(learner)


@pytest.mark.parametrize("stage", [0, 3])
def test_update_two_ranks_whose_heads_have_unequal_chunks_take_the_step_of_one(
    processes: Processes, model: Path, stage: int
) -> None:
    rows = make_rows(groups=3, per_group=1)
    _, gradients = expected_gradients(model, rows)
    for before, after in processes.call(DEADLINE_S, update_in_chunks, model, stage, rows):
        for name, gradient in gradients.items():
            step = first_step(gradient)
            np.testing.assert_allclose(
                before[name] - after[name], step, atol=2e-4 * np.abs(step).max() + 1e-7, rtol=0, err_msg=name
            )
