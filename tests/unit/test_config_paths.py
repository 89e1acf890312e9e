"""Paths and addresses among the settings: absolute ones only, since a job runs elsewhere than where it was submitted."""

from __future__ import annotations

import pytest

from rl_cluster.composition import TRAIN
from rl_cluster.config import tracking_uri
from rl_cluster.errors import ConfigError
from tests.helpers.configuration import load, load_config


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(TRAIN, overrides)
    return str(caught.value)


@pytest.mark.parametrize("folder", ["runs/one", "./runs", "../runs"])
def test_load_config_relative_output_dir_is_refused(folder: str) -> None:
    message = refusal(f"output_dir={folder}")
    assert message.startswith(f"output_dir: {folder!r} is relative")
    assert message.endswith("give an absolute path.")


@pytest.mark.parametrize("setting", ["weight_sync.folder", "data.folder"])
def test_load_config_relative_folder_is_refused(setting: str) -> None:
    message = refusal(f"{setting}=some/folder", *(["data=tables"] if setting == "data.folder" else []))
    assert message.startswith(f"{setting}: 'some/folder' is relative")
    assert message.endswith("give an absolute path.")


@pytest.mark.parametrize(
    ("uri", "mend"),
    [
        ("sqlite:///mlflow.db", "sqlite:////absolute/mlflow.db"),
        ("sqlite:///~/mlflow.db", "with four slashes"),
        ("./mlruns", "give sqlite:////absolute/mlflow.db or the address of a server"),
        ("file:mlruns", "give sqlite:////absolute/mlflow.db or the address of a server"),
    ],
)
def test_load_config_relative_store_is_refused(uri: str, mend: str) -> None:
    message = refusal(f"tracking.uri='{uri}'")
    assert message.startswith(f"tracking: uri={uri} ")
    assert mend in message


@pytest.mark.parametrize("uri", ["sqlite:////data/mlflow.db", "http://localhost:5000", "databricks", "databricks://a"])
def test_load_config_store_that_is_an_address_passes(uri: str) -> None:
    assert tracking_uri(load_config([f"tracking.uri={uri}"])) == uri


def test_load_config_paths_from_home_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that reads a setting sees the same folder."""
    monkeypatch.setenv("HOME", "/home/me")
    names = ("output_dir", "model.name", "learner.reference", "data.folder", "weight_sync.folder", "search.embedder")
    config = load_config(["data=tables", *(f"{name}='~/{name}'" for name in names)])
    values = [config.output_dir, config.model.name, config.learner.reference, config.data.folder]
    values += [config.weight_sync.folder, config.search.embedder]
    assert values == [f"/home/me/{name}" for name in names]
    assert tracking_uri(config) == "sqlite:////home/me/mlflow.db"
