"""What all sections of the configuration are made of; imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


def check_absolute(output_dir: str) -> None:
    """Raises ValueError for a relative folder."""
    if not Path(output_dir).expanduser().is_absolute():
        raise ValueError(
            f"output_dir={output_dir}: Ray runs a job in its own copy of the working directory, where a relative path would be lost; "
            "give an absolute path"
        )


class Section(BaseModel):
    """A group of settings: unknown names are refused, values are not silently converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
