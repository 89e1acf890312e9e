"""The search service adds a condition on metadata to every search."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rl_cluster.config import Section
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """`where`: the condition, as `retrieval.filters` reads it."""

    where: dict[str, Any] = Field(min_length=1)


class Drift(base.Drift):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.filters = settings.where

    @property
    def description(self) -> str:
        return f"only documents that meet {self.settings.where} are found"
