"""What all sections of the configuration are made of; imports nothing heavy."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


def _at_home(path: str) -> str:
    if not path.strip() or "\0" in path:
        raise ValueError(f"{path!r} names nothing; give a path or a name")
    return os.path.expanduser(path)


UserPath = Annotated[str, AfterValidator(_at_home)]
"""A path whose `~` is the home folder; a hub id or another name is left as it is."""


def _absolute(path: str) -> str:
    if not Path(path).is_absolute():
        raise ValueError(
            f"{path!r} is relative, but Ray runs a job in its own copy of the working directory, where it would be lost; give an absolute path"
        )
    return path


AbsolutePath = Annotated[UserPath, AfterValidator(_absolute)]


def _one_folder(name: str) -> str:
    if not name.strip() or name in (".", "..") or "/" in name or "\0" in name or len(name.encode()) > 200:
        raise ValueError(f"{name[:80]!r} is no name of a folder; give one of 1 to 200 bytes without a slash")
    return name


def _sampled_as_given(temperature: float) -> float:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(
            f"{temperature:g} is under {LEAST_TEMPERATURE:g}, to which the engine would raise it; give 0 for greedy replies, or more"
        )
    return temperature


LEAST_TEMPERATURE = 0.01
"""vLLM samples at this one where a lower one is asked for."""
Temperature = Annotated[float, Field(ge=0, le=2), AfterValidator(_sampled_as_given)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""As large as all random generators take."""
RunName = Annotated[str, AfterValidator(_one_folder)]


class Section(BaseModel):
    """A group of settings: unknown names are refused, values are not silently converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
