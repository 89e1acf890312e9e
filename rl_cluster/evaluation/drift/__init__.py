"""Drifts: ways in which the world of an agent differs from the one it was trained in, one file each.

A new one is a new file with a class `Settings` and a class `Drift`, and a file of settings in `hydra_conf/evaluation/drift`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_cluster.config import check_settings
from rl_cluster.evaluation.drift.base import Drift
from rl_cluster.registry import FileRegistry


def _files(prefix: str) -> FileRegistry:
    return FileRegistry(__name__, f"{prefix}name", shared=("base",))


def drift_names() -> list[str]:
    """The names that `get_drift` knows, sorted."""
    return _files("evaluation.drift.").names()


def get_drift(values: Mapping[str, Any], prefix: str = "evaluation.drift.") -> Drift:
    """The drift that `values` ask for: its `name`, and the settings of that drift. Raises ConfigError."""
    module = _files(prefix).module(values.get("name"))
    settings = check_settings(module.Settings, {key: value for key, value in values.items() if key != "name"}, prefix)
    return module.Drift(settings)
