"""The choices of a setting: files of a folder, and modules of one's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rl_cluster.algorithms.losses import default_settings, get_loss, loss_names, needs_reference
from rl_cluster.errors import ConfigError
from rl_cluster.registry import FileRegistry
from rl_cluster.rewards import get_reward
from tests.helpers.configuration import load_config

UNBOUNDED = 1e9
"""How a configuration, which has no infinity, writes that there is no bound."""
LOSSES = FileRegistry("rl_cluster.algorithms.losses", "algorithm.loss.name")


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an importable module `own_algorithms.halved`, which is empty."""
    package = tmp_path / "own_algorithms"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_algorithms", "own_algorithms.halved"):  # those of other tests
        monkeypatch.delitem(sys.modules, name, raising=False)
    return package / "halved.py"


def test_registry_shared_files_are_no_choice() -> None:
    formats = FileRegistry(
        "rl_cluster.episodes.formats", "model.tool_format", shared=("base", "json_calls", "thinking")
    )
    assert formats.names() == ["hermes", "llama3", "plain", "qwen3_coder"]


@pytest.mark.parametrize("name", ["ppo2", "", ".ppo", "ppo.", None, "__init__"])
def test_registry_unknown_name_lists_the_choices(name: str | None) -> None:
    with pytest.raises(ConfigError, match=r"^algorithm\.loss\.name=.* is unknown; choose one of cispo, .*ppo"):
        LOSSES.module(name)


def test_registry_own_module_serves_as_loss(own_module: Path) -> None:
    own_module.write_text(
        "from rl_cluster.algorithms.losses.ppo import DEFAULTS, loss\nNEEDS_REFERENCE = True\n", encoding="utf-8"
    )
    name = "own_algorithms.halved"
    assert get_loss(name) is get_loss("ppo")
    assert default_settings(name) == default_settings("ppo")
    assert needs_reference(name)
    assert not needs_reference("ppo")
    assert name not in loss_names()


def test_registry_own_module_missing_is_refused(own_module: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^environment\.reward='own_algorithms\.absent' cannot be imported .*submitted"
    ):
        get_reward("own_algorithms.absent")


def test_registry_own_module_in_error_is_refused(own_module: Path) -> None:
    own_module.write_text("def reward(task, trajectory:\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^environment\.reward='own_algorithms\.halved' cannot be imported \(SyntaxError"
    ):
        get_reward("own_algorithms.halved")


def test_registry_own_module_without_function_is_refused(own_module: Path) -> None:
    own_module.write_text("def rewards(task, trajectory): ...\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^environment\.reward='own_algorithms\.halved': .*halved\.py defines no 'reward'"
    ):
        get_reward("own_algorithms.halved")


def test_registry_own_module_that_exits_is_refused(own_module: Path) -> None:
    own_module.write_text("raise SystemExit(0)\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^environment\.reward='own_algorithms\.halved' cannot be imported \(SystemExit: 0"
    ):
        get_reward("own_algorithms.halved")


@pytest.mark.parametrize("definition", ["reward = 3", "def reward(task): ...", "def reward(task, trajectory, k): ..."])
def test_registry_own_function_that_cannot_be_called_is_refused(own_module: Path, definition: str) -> None:
    own_module.write_text(f"{definition}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError,
        match=r"^environment\.reward='own_algorithms\.halved': 'reward' cannot be called with 2 arguments \(",
    ):
        get_reward("own_algorithms.halved")


@pytest.mark.parametrize("name", loss_names())
def test_default_settings_are_those_of_the_configuration(name: str) -> None:
    needed = ["learner.reference=start"] if needs_reference(name) else []
    loss = load_config([f"algorithm/loss={name}", *needed]).algorithm.loss
    defaults = default_settings(name)
    assert (loss.clip_low, loss.clip_high) == pytest.approx((defaults.clip_low, min(defaults.clip_high, UNBOUNDED)))
