"""A model as a system of an evaluation: what is wrong with its folder or its engine's settings is said before anything starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rl_cluster.evaluate import EVALUATE, run
from rl_cluster.evaluation.settings import EvaluateConfig
from rl_cluster.models.source import bundled_policy
from tests.helpers.configuration import load
from tests.helpers.small_world import write_pumps


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def whole_model() -> Path:
    """Asked for before a test has a cache of its own."""
    return bundled_policy()


def config(tmp_path: Path, folder: Path, *overrides: str) -> EvaluateConfig:
    fixed = ["tracking=none", f"output_dir={tmp_path / 'out'}", "environment.tools=[bm25_search]", "system=[model]"]
    return load(EVALUATE, [*fixed, f"folders=[{folder}]", *overrides])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("config.json", "{", "configuration"),
        ("config.json", "{}", "configuration"),
        ("config.json", "[]", "configuration"),
        ("config.json", '{"model_type": "unheard_of"}', "configuration"),
        ("tokenizer.json", "{", "tokenizer"),
        ("tokenizer.json", '{"model": 3}', "tokenizer"),
    ],
)
def test_run_model_whose_folder_is_broken_is_one_sentence(
    tmp_path: Path, whole_model: Path, capsys: pytest.CaptureFixture[str], file: str, content: str, part: str
) -> None:
    folder, model = write_pumps(tmp_path / "pumps"), tmp_path / "model"
    shutil.copytree(whole_model, model, copy_function=os.symlink)
    (model / file).unlink()
    (model / file).write_text(content)
    assert run(config(tmp_path, folder, f"systems.model.path={model}")) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert f"error: systems.model.path={model}: its {part} cannot be read (" in said
    assert said.endswith("or a hub id.")


@pytest.mark.slow
def test_run_model_that_is_nowhere_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = write_pumps(tmp_path / "pumps")
    assert run(config(tmp_path, folder, "systems.model.path=no-such/model")) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "error: systems.model.path=no-such/model: its configuration cannot be read (" in said


@pytest.mark.slow
def test_run_model_whose_cache_holds_no_sequence_is_one_sentence(
    tmp_path: Path, whole_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    little = ["rollout.kv_cache_gib=0.01", f"systems.model.path={whole_model}"]
    assert run(config(tmp_path, folder, *little)) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "error: rollout.kv_cache_gib=0.01 does not hold one sequence of rollout.max_sequence_length=1536 tokens of "
        in said
    )
    assert not (tmp_path / "out" / "report.json").exists()
