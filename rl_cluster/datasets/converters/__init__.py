"""Data sets: one file each, found by its name. A new one is a new file and one of its name in `hydra_conf/dataset`.

`rl_cluster.datasets.preparation.converter` says what such a file holds.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, cast

from rl_cluster.datasets.preparation.converter import Converter
from rl_cluster.errors import ConfigError


def converter_names() -> list[str]:
    """The names that `get_converter` knows, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def get_converter(name: str) -> Converter[Any]:
    """The module of a data set. Raises ConfigError for an unknown name."""
    if name not in converter_names():
        raise ConfigError(f"dataset.name={name!r} is unknown; choose one of {', '.join(converter_names())}.")
    return cast(Converter[Any], importlib.import_module(f"{__name__}.{name}"))
