"""`FileRegistry`: the choices of one setting, one file each in a folder of this package, or a module of the user's own.

A name without a dot is a file of the folder. A name with dots is imported as it stands, so that a project adds a loss or a
reward of its own without a change here: it must be importable where the run's actors are, as the files of a job's
`--working-dir` are.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

from rl_cluster.errors import ConfigError


class FileRegistry:
    """`setting`: what chooses among the files, for messages. `shared`: files of the folder that are no choice.
    `others`: what the setting takes beside them."""

    def __init__(self, package: str, setting: str, shared: tuple[str, ...] = (), others: tuple[str, ...] = ()) -> None:
        self._package = package
        self._names: list[str] = []
        self._setting = setting
        self._shared = shared
        self._others = others

    def names(self) -> list[str]:
        """The files that can be chosen, sorted; the folder is read once in a process."""
        if not self._names:
            modules = pkgutil.iter_modules(importlib.import_module(self._package).__path__)
            self._names = sorted(module.name for module in modules if module.name not in self._shared)
        return list(self._names)

    def module(self, name: Any) -> ModuleType:
        """The module of that name. Raises ConfigError where there is none, or where one of the user's own cannot be imported."""
        if isinstance(name, str) and "." in name.strip("."):
            return self._import_own(name)
        if name not in self.names():
            known = ", ".join([*self._others, *self.names()])
            raise ConfigError(
                f"{self._setting}={name!r} is unknown; choose one of {known}, or give a module of your own with its dots."
            )
        return importlib.import_module(f"{self._package}.{name}")

    def get(self, name: Any, attribute: str) -> Any:
        """What the module of that name defines as `attribute`. Raises ConfigError as `module` does, or where it defines none."""
        module = self.module(name)
        if not hasattr(module, attribute):
            raise ConfigError(f"{self._setting}={name!r}: {module.__file__} defines no {attribute!r}; add it there.")
        return getattr(module, attribute)

    def function(self, name: Any, attribute: str, arguments: int) -> Any:
        """As `get`, of a function that is called with that many arguments. Raises ConfigError also where it cannot be."""
        found = self.get(name, attribute)
        try:
            inspect.signature(found).bind(*[None] * arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._setting}={name!r}: {attribute!r} cannot be called with {arguments} arguments ({error}); define it as "
                "the bundled files of its kind do."
            ) from error
        return found

    def _import_own(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit) as error:  # the user's own code may raise anything, or be a script that exits
            raise ConfigError(
                f"{self._setting}={name!r} cannot be imported ({type(error).__name__}: {error}); put the module into the folder that is submitted, or install it."
            ) from error
