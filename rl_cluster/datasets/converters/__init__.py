"""Data sets: one file each, found by its name. A new one is a new file and one of its name in `hydra_conf/dataset`.

`rl_cluster.datasets.preparation.converter` says what such a file holds.
"""

from __future__ import annotations

from typing import Any, cast

from rl_cluster.datasets.preparation.converter import Converter
from rl_cluster.registry import FileRegistry

_FILES = FileRegistry(__name__, "dataset.name")


def converter_names() -> list[str]:
    """The names that `get_converter` knows, sorted."""
    return _FILES.names()


def get_converter(name: str) -> Converter[Any]:
    """The module of a data set. Raises ConfigError for an unknown name."""
    return cast(Converter[Any], _FILES.module(name))
