"""A run is continued only as what it was; refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rl_cluster.datasets.tables import read_tasks, write_tasks
from rl_cluster.datasets.task import digest_of
from rl_cluster.errors import CheckpointError, ConfigError
from rl_cluster.learning.checkpoint import TASKS, RunState
from tests.helpers.configuration import load_config
from tests.helpers.job_inputs import SPLITS, Inputs, refusal, task
from tests.helpers.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model("smollm2", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def inputs(tmp_path: Path, tiny_model: Path) -> Inputs:
    return Inputs(tmp_path, tiny_model)


def leave_a_run(inputs: Inputs, output: Path, *overrides: str) -> None:
    data = ["data=tables", f"data.folder='{inputs.data}'", f"model.name='{inputs.model}'", "warmup=none"]
    config = load_config([*data, f"output_dir={output}", *overrides])
    folder = output / "checkpoints" / "step_000004"
    folder.mkdir(parents=True)
    write_tasks(inputs.data / "tasks.parquet", inputs.tasks)
    tasks = digest_of(task for split in SPLITS for task in read_tasks(inputs.data / "tasks.parquet", split, "tables"))
    state = RunState(4, {}, [], 0.0, config.model_dump(mode="json"), {TASKS: tasks})
    (folder / "run.json").write_text(json.dumps(msgspec.to_builtins(state)))


def test_check_inputs_run_continued_with_other_settings_is_refused_naming_the_first(
    inputs: Inputs, tmp_path: Path
) -> None:
    leave_a_run(inputs, tmp_path / "run")
    where = f"output_dir={tmp_path / 'run'}"
    inputs.check(where, "training.max_steps=99", "tracking=none", "staleness.max_steps_off_policy=0")
    message = refusal(CheckpointError, inputs.check, where, "algorithm/loss=cispo")
    assert "algorithm.loss" in message
    assert "cispo" in message


def test_check_inputs_run_continued_on_other_tasks_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    leave_a_run(inputs, tmp_path / "run")
    inputs.tasks["train"][1] = task("train-1", gains={"d2": 1.0})
    message = refusal(CheckpointError, inputs.check, f"output_dir={tmp_path / 'run'}")
    assert "step_000004 was made on other data (the tasks: " in message
    assert "put back the data" in message


def test_check_inputs_fresh_start_in_a_used_folder_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    leave_a_run(inputs, tmp_path / "run")
    message = refusal(ConfigError, inputs.check, f"output_dir={tmp_path / 'run'}", "resume=never")
    assert "holds a run at step_000004" in message


def test_check_inputs_fine_tuning_in_a_used_folder_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    leave_a_run(inputs, tmp_path / "run")
    where = f"output_dir={tmp_path / 'run'}"
    message = refusal(ConfigError, inputs.check, where, "training.max_steps=0", "warmup=judgements")
    assert "training.max_steps=0 starts from the model anew" in message
    assert "at step_000004" in message
