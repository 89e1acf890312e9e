"""Saved models and warnings before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_cluster.config_warnings import warnings_of
from rl_cluster.errors import CheckpointError
from rl_cluster.learning.model_folder import begin_model, commit_model, validation_of
from tests.helpers.configuration import load_config


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


@pytest.mark.parametrize("loss", ["importance_sampling", "policy_gradient"])
def test_warnings_loss_without_a_trust_region_on_old_samples_is_named(loss: str) -> None:
    (warning,) = warnings_of(load_config([f"algorithm/loss={loss}", "staleness.max_steps_off_policy=3"]))
    assert f"algorithm.loss={loss} has no trust region" in warning
    for safe in ("staleness.max_steps_off_policy=0", "algorithm/correction=truncate", "algorithm/loss=cispo"):
        assert warnings_of(load_config([f"algorithm/loss={loss}", safe])) == []


def test_warnings_constant_normaliser_by_default_says_its_number() -> None:
    const = ["algorithm.loss.aggregation=const", "environment.max_turns=5", "rollout.sampling_max_tokens=40"]
    (warning,) = warnings_of(load_config(const))
    assert "divides by 200 tokens an episode" in warning
    assert warnings_of(load_config([*const, "algorithm.loss.max_episode_tokens=900"])) == []


def test_warnings_gspo_with_another_aggregation_is_named() -> None:
    assert warnings_of(load_config(["algorithm/loss=gspo"])) == []
    (warning,) = warnings_of(load_config(["algorithm/loss=gspo", "algorithm.loss.aggregation=token_mean"]))
    assert warning.startswith("algorithm.loss.aggregation=token_mean weighs long episodes more")
