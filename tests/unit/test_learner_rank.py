"""What a learner rank publishes, saves and loads, with real torch and DeepSpeed on a tiny model.

Everything runs in one process beside the tests, since DeepSpeed leaves its mark on the process that it runs in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_cluster.errors import CheckpointError, DigestMismatchError, ModelError
from rl_cluster.learning.settings import LoraSettings
from tests.helpers.tiny_learner import (
    UPDATE,
    Processes,
    file_tensors,
    largest_gap,
    learner_rank,
    make_rows,
    parameters,
    save_tiny_model,
)

pytestmark = pytest.mark.cluster

DEADLINE_S = 120.0
LORA = LoraSettings(rank=4, alpha=8)
Weights = dict[str, np.ndarray]


# What runs in the other process.


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
    with pytest.raises(CheckpointError, match=r"holds no learner state; remove .* to resume from the one before"):
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


@pytest.mark.parametrize("kind", ["missing", "empty", "no tokenizer"])
def test_setup_unusable_model_folder_is_a_model_error(process: Processes, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    if kind == "empty":
        folder.mkdir()
    if kind == "no tokenizer":
        save_tiny_model(folder, tied=True, tokenizer=False)
    with pytest.raises(ModelError, match=r"can(not)? be loaded"):
        process.call(DEADLINE_S, set_up_only, folder)
