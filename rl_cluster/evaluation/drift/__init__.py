"""Drifts: ways in which the world of an agent differs from the one it was trained in, one file each.

A new one is a new file with a class `Settings` and a class `Drift`, and a file of settings in `hydra_conf/evaluation/drift`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from rl_cluster.config import check_settings
from rl_cluster.errors import ConfigError
from rl_cluster.evaluation.drift.base import Drift

_SHARED = ("base",)


def drift_names() -> list[str]:
    """The names that `get_drift` knows, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _SHARED)


def get_drift(values: Mapping[str, Any], prefix: str = "evaluation.drift.") -> Drift:
    """The drift that `values` ask for: its `name`, and the settings of that drift. Raises ConfigError."""
    name = values.get("name")
    if name not in drift_names():
        raise ConfigError(f"{prefix}name={name!r} is unknown; choose one of {', '.join(drift_names())}.")
    module = importlib.import_module(f"{__name__}.{name}")
    settings = check_settings(module.Settings, {key: value for key, value in values.items() if key != "name"}, prefix)
    return module.Drift(settings)
