"""From Hydra's composed values to a checked `Config`, with one-sentence errors for a wrong command line."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Generic, TypeVar

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_cluster.config import validate
from rl_cluster.errors import ConfigError, first_line

_Checked = TypeVar("_Checked")


@dataclass(frozen=True)
class Application(Generic[_Checked]):
    """An entry point: its root file in hydra_conf, its module, and what turns composed values into checked settings.

    `required` names the groups that have no default choice, without which the settings are not all known.
    """

    config_name: str
    module: str
    check: Callable[[Mapping[str, Any]], _Checked]
    required: tuple[str, ...] = ()

    def load(self, overrides: Sequence[str]) -> _Checked:
        """Composes and checks the configuration as the command line would. Raises ConfigError."""
        GlobalHydra.instance().clear()
        try:
            with initialize_config_module("hydra_conf", version_base="1.3"):
                return self.checked(compose(self.config_name, overrides=list(overrides)))
        except HydraException as error:
            raise ConfigError(_sentence(self, error, overrides)) from error
        except (OmegaConfBaseException, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"The command line {' '.join(overrides)!r} cannot be composed: {first_line(error)}."
            ) from error

    def checked(self, settings: DictConfig) -> _Checked:
        """Checks composed values. Raises ConfigError, also for a value that is still missing (`???`)."""
        try:
            plain = OmegaConf.to_container(settings, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            raise ConfigError(_unresolved(settings, error)) from error
        assert isinstance(plain, dict)
        return self.check({str(key): value for key, value in plain.items() if key != "hydra"})

    def check_command_line(self, arguments: Sequence[str]) -> None:
        """Exits with code 2 and one sentence when an override is wrong; Hydra's own flags are left to Hydra."""
        if any(argument.startswith("-") for argument in arguments):
            return
        try:
            self.load(arguments)
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)


TRAIN = Application("config", "rl_cluster.train", validate)
load_config, to_config, check_command_line = TRAIN.load, TRAIN.checked, TRAIN.check_command_line


def _unresolved(settings: DictConfig, error: OmegaConfBaseException) -> str:
    try:
        missing = sorted(OmegaConf.missing_keys(settings))
    except OmegaConfBaseException:  # looking for them resolves what it meets, which is what failed before
        missing = []
    if missing:
        return f"{missing[0]} is not set; add {missing[0]}=... to the command line."
    return f"The configuration cannot be resolved: {first_line(error)}."


def _sentence(application: Application[Any], error: HydraException, overrides: Sequence[str]) -> str:
    text = " ".join(str(error).split())
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        return _unknown_setting(application, unknown.group(1), overrides)
    choice = re.search(r"Could not find '([^']+)'", text)
    if choice:
        options = re.search(r"Available options in '[^']+': (.*?)(?: Config search path|$)", text)
        return _no_choice(choice.group(1), options.group(1).split() if options else [])
    listed_choice = re.search(r"Could not load '([^']+)'", text)
    if listed_choice:  # Hydra lists no options for one of several choices
        group = listed_choice.group(1).rpartition("/")[0]
        folder = files("hydra_conf").joinpath(*group.split("/"))
        names = sorted(file.name.removesuffix(".yaml") for file in folder.iterdir()) if folder.is_dir() else []
        return _no_choice(listed_choice.group(1), names)
    return f"The command line {' '.join(overrides)!r} cannot be read: {text}"


def _no_choice(asked: str, names: list[str]) -> str:
    close = difflib.get_close_matches(asked.rpartition("/")[2], names, n=1, cutoff=0.7)
    ending = f"; did you mean {close[0]!r}?" if close else "."
    return f"{asked} is no choice of hydra_conf; available: {', '.join(names) or 'see hydra_conf/'}{ending}"


def _unknown_setting(application: Application[Any], name: str, overrides: Sequence[str]) -> str:
    choices = [override for override in overrides if override.partition("=")[0] in application.required]
    with initialize_config_module("hydra_conf", version_base="1.3"):
        settings = compose(application.config_name, overrides=choices)
    known = list(_dotted(OmegaConf.to_container(settings, resolve=False)))
    ending = difflib.get_close_matches(_last_name(name), {_last_name(dotted) for dotted in known}, n=1, cutoff=0.7)
    places = [dotted for dotted in known if ending and _last_name(dotted) == ending[0]]
    section = name.rpartition(".")[0]
    close = next((dotted for dotted in places if dotted.rpartition(".")[0] == section), places[0] if places else "")
    hint = f"did you mean {close!r}?" if close else f"`python -m {application.module} --cfg job` lists all settings."
    siblings = [_last_name(dotted) for dotted in known if section and dotted.rpartition(".")[0] == section]
    if siblings and close.rpartition(".")[0] != section:
        hint = f"{section} has {', '.join(siblings)}; {hint}"
    return f"{name} is no setting; {hint}"


def _last_name(dotted: str) -> str:
    return dotted.rpartition(".")[2]


def _dotted(value: object, prefix: str = "") -> list[str]:
    if not isinstance(value, dict):
        return [prefix]
    names = []
    for key, inner in value.items():
        names += _dotted(inner, f"{prefix}.{key}" if prefix else str(key))
    return names
