"""The search service adds a condition on metadata to every search."""

from __future__ import annotations

from pydantic import Field

from rl_cluster.config import Section
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """Only documents are found whose metadata has one of `values` in `field`."""

    field: str
    values: list[str | float | bool] = Field(min_length=1)


class Drift(base.Drift):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.filters = {settings.field: settings.values}

    @property
    def description(self) -> str:
        values = ", ".join(map(str, self.settings.values))
        return f"only documents are found whose {self.settings.field} is one of: {values}"
