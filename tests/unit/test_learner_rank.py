"""One learner rank with real torch and DeepSpeed on a tiny model, against independent computations in float64.

Everything runs in one process beside the tests, since DeepSpeed leaves its mark on the process that it runs in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_cluster.errors import CheckpointError, DigestMismatchError, LearnerError, ModelError
from rl_cluster.learning.settings import LoraSettings
from rl_cluster.sequences.row import TrainingRow
from tests.helpers.tiny_learner import (
    UPDATE,
    Processes,
    expected_gradients,
    file_tensors,
    first_step,
    largest_gap,
    learner_rank,
    make_rows,
    make_rows_alike,
    parameters,
    save_tiny_model,
)

pytestmark = pytest.mark.cluster

DEADLINE_S = 120.0
LORA = LoraSettings(rank=4, alpha=8)
Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def process() -> Iterator[Processes]:
    processes = Processes(1)
    try:
        yield processes
    finally:
        processes.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Model folders, by whether input and output embeddings are tied."""
    root = tmp_path_factory.mktemp("models")
    for tied in (True, False):
        save_tiny_model(root / str(tied), tied)
    return {tied: root / str(tied) for tied in (True, False)}


# What runs in the other process.


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


def probe_and_publish(
    rank: int, world: int, port: int, model: Path, snapshot: Path, ids: list[int], changes: dict[str, Any]
) -> tuple[Any, Weights]:
    with learner_rank(model, rank, world, port, **changes) as learner:
        learner.update(make_rows(), UPDATE)
        return learner.publish(str(snapshot), ids, "node-1"), parameters(learner)


def merge_with_peft(rank: int, world: int, port: int, model: Path) -> tuple[Weights, Weights, list[str]]:
    with learner_rank(model, rank, world, port, lora=LORA, learning_rate=50.0) as learner:
        learner.update(make_rows(), UPDATE)
        learner.update(make_rows(seed=1), UPDATE)
        exported, trained = parameters(learner), learner.parameter_names()
        merged = learner.engine.module.model.merge_and_unload()
        return exported, {n: p.detach().double().numpy().copy() for n, p in merged.named_parameters()}, trained


def save_and_go_on(
    rank: int, world: int, port: int, model: Path, folder: Path, changes: dict[str, Any]
) -> tuple[Weights, Weights, Any]:
    with learner_rank(model, rank, world, port, **changes) as learner:
        learner.begin_supervised(0.5)
        learner.update(make_rows(seed=3), replace(UPDATE, loss="cross_entropy"), supervised=True)
        learner.update(make_rows(), UPDATE)
        learner.update(make_rows(seed=1), UPDATE)
        learner.save(str(folder))
        saved = parameters(learner)
        metrics = learner.update(make_rows(seed=2), UPDATE)
        return saved, parameters(learner), metrics["learner/loss"]


def save_both(rank: int, world: int, port: int, model: Path, checkpoint: Path, folder: Path, changes: dict) -> None:
    with learner_rank(model, rank, world, port, **changes) as learner:
        learner.update(make_rows(), UPDATE)
        learner.save(str(checkpoint))
        learner.save_hugging_face(str(folder))


def load_and_go_on(
    rank: int, world: int, port: int, model: Path, folder: Path, changes: dict[str, Any]
) -> tuple[Weights, Weights, Any, tuple[int, int, int]]:
    with learner_rank(model, rank, world, port, seed=99, **changes) as learner:
        steps = learner.load(str(folder))
        loaded = parameters(learner)
        counters = (steps, learner.completed_steps, learner.supervised_steps)
        metrics = learner.update(make_rows(seed=2), UPDATE)
        return loaded, parameters(learner), metrics["learner/loss"], counters


def load_only(rank: int, world: int, port: int, model: Path, folder: Path) -> int:
    with learner_rank(model, rank, world, port) as learner:
        return learner.load(str(folder))


def save_folder(rank: int, world: int, port: int, model: Path, folder: Path, changes: dict[str, Any]) -> list[float]:
    import torch

    with learner_rank(model, rank, world, port, **changes) as learner:
        learner.update(make_rows(), UPDATE)
        learner.save_hugging_face(str(folder))
        with torch.no_grad():
            logits = learner.engine.module.model(input_ids=torch.arange(2, 40)[None]).logits
        return logits.double().flatten().tolist()


def set_up_only(rank: int, world: int, port: int, model: Path) -> None:
    with learner_rank(model, rank, world, port):
        pass


def reset_then_update(rank: int, world: int, port: int, model: Path, reset: bool) -> Weights:
    with learner_rank(model, rank, world, port, learning_rate=1e-3, adam_eps=1e-8) as learner:
        learner.update(make_rows(), UPDATE)
        if reset:
            learner.reset_optimizer()
        before = parameters(learner)
        learner.update(make_rows(seed=1), UPDATE)
        after = parameters(learner)
        return {name: after[name] - before[name] for name in after}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changes", [{}, {"share_prefix": True}, {"temperature": 0.7}, {"micro_batch_tokens": 48}])
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
    assert metrics["learner/loss"] == 0
    assert metrics["learner/skipped_rows"] == len(rows)


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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changes", [{}, {"lora": LORA, "learning_rate": 50.0}, {"temperature": 0.5}])
def test_publish_snapshot_is_the_model_and_its_digests_verify(
    process: Processes, models: dict[bool, Path], tmp_path: Path, tied: bool, changes: dict[str, Any]
) -> None:
    import torch
    from safetensors.torch import load_file

    from rl_cluster.learning.weight_version import verify_digest, verify_probe

    ids, snapshot = list(range(3, 40)), tmp_path / "deep" / "version.safetensors"
    ((version, weights),) = process.call(DEADLINE_S, probe_and_publish, models[tied], snapshot, ids, changes)
    tensors = load_file(snapshot)
    assert (version.version, version.path, version.node_id) == (1, str(snapshot), "node-1")
    assert version.num_bytes == snapshot.stat().st_size
    assert tensors.keys() == version.digests.keys() == file_tensors(models[tied]).keys()
    for name, tensor in tensors.items():
        verify_digest(name, tensor, version.digests)
        assert np.array_equal(tensor.double().numpy(), weights[name])
    assert largest_gap(weights, file_tensors(models[tied])) > 1e-3
    # The probe is at temperature 1 whatever the training's is; a plain forward of the snapshot agrees with it.
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(models[tied], dtype=torch.float32)
    plain.load_state_dict(tensors, strict=not tied)
    with torch.no_grad():
        logits = plain(input_ids=torch.tensor([ids])).logits[0, :-1].double()
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[1:, None])[:, 0].tolist()
    assert version.probe.token_ids == tuple(ids)
    assert verify_probe(version.probe, expected, tolerance=1e-4) < 1e-4
    assert [path.name for path in snapshot.parent.iterdir()] == [snapshot.name]


def test_verify_digest_one_byte_flipped_anywhere_is_a_mismatch(
    process: Processes, models: dict[bool, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    from rl_cluster.learning.weight_version import verify_digest

    snapshot = tmp_path / "version.safetensors"
    ((version, _),) = process.call(DEADLINE_S, probe_and_publish, models[True], snapshot, [3, 4, 5], {})
    whole = snapshot.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in (start, (start + len(whole)) // 2, len(whole) - 1):
        corrupt = bytearray(whole)
        corrupt[place] ^= 1
        snapshot.write_bytes(corrupt)
        refused = []
        for name, tensor in load_file(snapshot).items():
            try:
                verify_digest(name, tensor, version.digests)
            except DigestMismatchError as error:
                refused.append(str(error))
        assert len(refused) == 1
        assert "the engine must be restarted" in refused[0]


@pytest.mark.parametrize("tied", [True, False])
def test_merged_tensors_lora_has_the_base_names_and_equals_peft(
    process: Processes, models: dict[bool, Path], tied: bool
) -> None:
    ((exported, merged, trained),) = process.call(DEADLINE_S, merge_with_peft, models[tied])
    base = file_tensors(models[tied])
    assert exported.keys() == base.keys() == merged.keys()
    assert largest_gap(exported, merged) < 1e-6
    moved = {name for name in base if np.abs(exported[name] - base[name]).max() > 1e-4}
    assert moved == {name for name in base if "_proj" in name}
    assert trained
    assert all("lora_" in name for name in trained)


@pytest.mark.parametrize("changes", [{}, {"lora": LORA, "learning_rate": 20.0}, {"zero_stage": 2}])
def test_load_after_save_goes_on_as_if_uninterrupted(
    process: Processes, models: dict[bool, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    # Small epsilon and both moments in play: the step after the load shows the optimiser's state.
    changes = {"adam_eps": 1e-4, "learning_rate": 1e-2, "schedule": "cosine", **changes}
    ((saved, expected, loss),) = process.call(DEADLINE_S, save_and_go_on, models[True], tmp_path / "c", changes)
    ((loaded, after, loss_after, counters),) = process.call(
        DEADLINE_S, load_and_go_on, models[True], tmp_path / "c", changes
    )
    assert counters == (2, 2, 1)
    assert largest_gap(loaded, saved) == 0
    assert largest_gap(after, saved) > 1e-5
    assert largest_gap(after, expected) == 0
    assert loss_after == loss


def test_load_from_an_empty_folder_is_a_checkpoint_error(
    process: Processes, models: dict[bool, Path], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="holds no learner state; remove .* to resume from the one before"):
        process.call(DEADLINE_S, load_only, models[True], tmp_path)


def test_load_checkpoint_of_another_model_is_a_checkpoint_error(
    process: Processes, models: dict[bool, Path], tmp_path: Path
) -> None:
    process.call(DEADLINE_S, save_and_go_on, models[True], tmp_path, {})
    with pytest.raises(
        CheckpointError,
        match=r"was made from model .*; set model\.name to the former|does not fit the job .*; set model",
    ):
        process.call(DEADLINE_S, load_only, models[False], tmp_path)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changes", [{}, {"lora": LORA, "learning_rate": 50.0}])
def test_save_hugging_face_folder_gives_the_same_logits(
    process: Processes, models: dict[bool, Path], tmp_path: Path, tied: bool, changes: dict[str, Any]
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rl_cluster.models.source import check_model_folder

    folder = tmp_path / "final"
    folder.mkdir()
    ((logits,),) = [process.call(DEADLINE_S, save_folder, models[tied], folder, changes)]
    check_model_folder(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        loaded = model(input_ids=torch.arange(2, 40)[None]).logits.double().flatten().numpy()
    np.testing.assert_allclose(loaded, np.array(logits), atol=1e-4)
    assert model.config.tie_word_embeddings is tied
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert file_tensors(folder).keys() == file_tensors(models[tied]).keys()
    assert (folder / "adapter").exists() is ("lora" in changes)
    if "lora" in changes:
        from peft import PeftModel

        adapted: Any = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(models[tied], dtype=torch.float32), folder / "adapter"
        )
        with torch.no_grad():
            apart = adapted(input_ids=torch.arange(2, 40)[None]).logits.double().flatten().numpy()
        np.testing.assert_allclose(apart, np.array(logits), atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"lora": LORA, "learning_rate": 50.0}, {"zero_stage": 2}])
def test_resolve_policy_checkpoint_becomes_the_saved_model_once(
    process: Processes,
    models: dict[bool, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    from rl_cluster.learning.checkpoint import STATE
    from rl_cluster.learning.checkpoint_export import resolve_policy

    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))
    checkpoint, folder = tmp_path / "step_000001", tmp_path / "final"
    folder.mkdir()
    process.call(DEADLINE_S, save_both, models[True], checkpoint, folder, changes)
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        resolve_policy(str(checkpoint))
    (checkpoint / STATE).write_text("{}")
    exported = Path(resolve_policy(str(checkpoint)))
    assert largest_gap(file_tensors(exported), file_tensors(folder)) == 0
    assert (exported / "adapter").exists() is ("lora" in changes)
    written = (exported / "model.safetensors").stat().st_mtime_ns
    assert resolve_policy(str(checkpoint)) == str(exported)
    assert (exported / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in exported.parent.iterdir()] == [exported.name]


def test_resolve_policy_checkpoint_without_weights_or_of_a_changed_model_is_refused(
    process: Processes, models: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from rl_cluster.learning.checkpoint import STATE
    from rl_cluster.learning.checkpoint_export import resolve_policy

    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))
    (tmp_path / STATE).write_text("{}")
    with pytest.raises(CheckpointError, match=r"model_states\.pt cannot be read"):
        resolve_policy(str(tmp_path))
    model = tmp_path / "model"
    shutil.copytree(models[True], model)
    process.call(DEADLINE_S, save_both, model, tmp_path, tmp_path, {"lora": LORA})
    shutil.rmtree(model)
    with pytest.raises(ModelError, match="cannot be loaded"):
        resolve_policy(str(tmp_path))
    assert list((tmp_path / "cache" / "exports").iterdir()) == []


def test_reset_optimizer_forgets_the_moments(process: Processes, models: dict[bool, Path]) -> None:
    """After a reset the next step is a first step of Adam: nearly the learning rate, wherever a gradient is."""
    ((fresh,),) = [process.call(DEADLINE_S, reset_then_update, models[False], True)]
    ((used,),) = [process.call(DEADLINE_S, reset_then_update, models[False], False)]
    name = "model.layers.1.self_attn.q_proj.weight"
    assert np.quantile(np.abs(fresh[name]), 0.1) == pytest.approx(1e-3, rel=1e-2)
    assert np.quantile(np.abs(used[name]), 0.1) < 0.9e-3


@pytest.mark.parametrize("kind", ["missing", "empty", "no tokenizer"])
def test_setup_unusable_model_folder_is_a_model_error(process: Processes, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    if kind == "empty":
        folder.mkdir()
    if kind == "no tokenizer":
        save_tiny_model(folder, tied=True, tokenizer=False)
    with pytest.raises(ModelError, match=r"can(not)? be loaded"):
        process.call(DEADLINE_S, set_up_only, folder)
