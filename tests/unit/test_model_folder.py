"""Saved models: one takes the place of the one before, or leaves it as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_cluster.errors import CheckpointError
from rl_cluster.learning.model_folder import begin_model, commit_model, validation_of


def save(output: Path, text: str, validation: dict[str, float] | None = None) -> None:
    (begin_model(output, "best") / "model.safetensors").write_text(text)
    commit_model(output, "best", validation)


def test_commit_model_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, "one", {"step": 1.0, "ndcg@10": 0.5})
    save(tmp_path, "two")
    assert (tmp_path / "best" / "model.safetensors").read_text() == "two"
    assert validation_of(tmp_path, "best") == {}
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_model_half_written_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, "one", {"step": 1.0, "ndcg@10": 0.5})
    (begin_model(tmp_path, "best") / "model.safetensors").write_text("hal")
    assert (tmp_path / "best" / "model.safetensors").read_text() == "one"
    assert validation_of(tmp_path, "best") == {"step": 1.0, "ndcg@10": 0.5}
    save(tmp_path, "two", {"step": 2.0, "ndcg@10": 0.6})
    assert validation_of(tmp_path, "best")["step"] == 2.0


def test_commit_model_without_weights_is_refused_and_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, "one")
    begin_model(tmp_path, "best")
    with pytest.raises(CheckpointError, match=r"holds no weights: .* does not share this folder; set output_dir"):
        commit_model(tmp_path, "best")
    assert (tmp_path / "best" / "model.safetensors").read_text() == "one"
