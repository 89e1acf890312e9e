"""A search shows another number of hits."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from rl_cluster.config import Section
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """`k` hits a search, unless the call says otherwise."""

    k: Annotated[int, Field(ge=1, le=50)]


class Drift(base.Drift):
    @property
    def description(self) -> str:
        return f"a search shows {self.settings.k} hits"

    def applies_to(self, tool_format: ToolFormat | None) -> bool:
        return tool_format is not None

    def environment(self, settings: SearchEnvironmentSettings) -> SearchEnvironmentSettings:
        return replace(settings, k=self.settings.k, max_k=max(settings.max_k, self.settings.k))
