"""Whether MLflow can write where a run is to be tracked, asked before anything starts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rl_cluster.errors import ClusterError, ConfigError, OutputError
from rl_cluster.evaluate import EVALUATE
from rl_cluster.evaluate import run as run_evaluation
from rl_cluster.own_folder import check_folder, own_folder
from rl_cluster.tracking.store import check_store, reason
from tests.helpers.configuration import load
from tests.helpers.small_world import write_pumps

NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")


def test_store_of_a_file_that_is_not_there_yet_passes_and_makes_nothing(tmp_path: Path) -> None:
    check_store(f"sqlite:///{tmp_path / 'a' / 'b' / 'mlflow.db'}")
    assert list(tmp_path.iterdir()) == []


def test_store_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"tracking\.uri=sqlite:.*cannot be used \(.*file cannot be written\)"):
        check_store(f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}")


def test_store_of_an_unknown_kind_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        check_store("foo://bar")
    assert str(caught.value).startswith("tracking.uri=foo://bar cannot be used (")
    assert "\n" not in str(caught.value)


def test_store_of_a_server_that_does_not_answer_is_refused_by_what_the_system_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConfigError) as caught:
            check_store(uri)
    assert str(caught.value).startswith(f"tracking.uri={uri} cannot be used (Connection refused); ")


def test_reason_of_an_error_without_words_is_its_kind() -> None:
    assert reason(KeyError()) == "KeyError"
    assert reason(ValueError("first.\nsecond")) == "first"


def test_folder_that_is_not_there_yet_passes_and_is_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "run", "job")
    assert list(tmp_path.iterdir()) == []


def test_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"output_dir=.*run cannot be written \(.*file is no folder\)"):
        check_folder(tmp_path / "file" / "run", "job")


@NOT_ROOT
def test_folder_without_leave_to_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        check_folder(tmp_path / "run", "job")


def test_folder_in_which_another_job_runs_is_refused(tmp_path: Path) -> None:
    with own_folder(tmp_path / "run", "job"), pytest.raises(ClusterError, match="another job runs in this folder"):
        check_folder(tmp_path / "run", "job")
    check_folder(tmp_path / "run", "job")


def test_evaluation_that_could_not_be_tracked_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    asked = [f"folders=[{folder}]", f"output_dir={tmp_path / 'out'}", "tracking=mlflow", "tracking.uri=foo://bar"]
    assert run_evaluation(load(EVALUATE, ["system=[bm25]", *asked])) == 2
    assert "error: tracking.uri=foo://bar cannot be used (" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
