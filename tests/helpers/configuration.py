"""Configurations for tests that are not about composing them: each set of choices is composed once in a process.

Composing takes a tenth of a second, most of it reading forty files; hundreds of tests ask for one of a few sets.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeVar

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_cluster.composition import TRAIN, Application
from rl_cluster.config import Config

_Checked = TypeVar("_Checked")


def load(application: Application[_Checked], overrides: Sequence[str]) -> _Checked:
    """What `application.load(overrides)` gives; what cannot be composed goes there, for its error."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        values = [override for override in parsed if _is_value(override)]
        settings = pickle.loads(_composed(application, tuple(o.input_line or "" for o in parsed if o not in values)))
        for override in values:
            OmegaConf.update(settings, override.key_or_group, override.value(), merge=True)
    except (HydraException, OmegaConfBaseException, ValueError):
        return application.load(overrides)
    return application.checked(settings)


def load_config(overrides: Sequence[str]) -> Config:
    """What `composition.load_config` gives."""
    return load(TRAIN, overrides)


def _is_value(override: Override) -> bool:
    """Whether it sets a value that is there, and chooses nothing."""
    group: Any = files("hydra_conf").joinpath(*override.key_or_group.split("/"))
    changes = override.is_add() or override.is_force_add() or override.is_delete() or override.package is not None
    return not changes and not group.is_dir()


@lru_cache(maxsize=64)
def _composed(application: Application[Any], choices: tuple[str, ...]) -> bytes:
    """The settings as pickle writes them, which is the quickest way to a copy."""
    GlobalHydra.instance().clear()
    with initialize_config_module("hydra_conf", version_base="1.3"):
        return pickle.dumps(compose(application.config_name, overrides=list(choices)))
