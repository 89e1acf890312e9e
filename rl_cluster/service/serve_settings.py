"""The schema of `python -m rl_cluster.serve`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from rl_cluster.config import check_settings
from rl_cluster.config_search import AgentTool, SearchConfig
from rl_cluster.config_types import Section
from rl_cluster.service.values import NAME_PATTERN


class ServeConfig(Section):
    """Which indexes to serve, how, and what is offered to agents."""

    name: str
    indexes: dict[str, str] | None
    corpora: dict[str, str] | None
    locales: tuple[str, ...] = Field(strict=False)
    tools: tuple[AgentTool, ...] = Field(min_length=1, strict=False)
    k: Annotated[int, Field(ge=1, le=100)]
    max_k: Annotated[int, Field(ge=1, le=100)]
    filter_fields: tuple[str, ...] = Field(strict=False)
    address: str | None
    search: SearchConfig

    @model_validator(mode="after")
    def _something_to_serve(self) -> ServeConfig:
        indexes, corpora = self.indexes or {}, self.corpora or {}
        names = [*indexes, *corpora]
        if not names:
            raise ValueError(
                "neither indexes nor corpora names anything; add 'indexes={NAME: FOLDER}' to the command line"
            )
        for name in [self.name, *names]:
            if not re.match(NAME_PATTERN, name):
                raise ValueError(f"the name {name!r} stands in URLs; use letters, digits, '-', '_' and '.'")
        twice = [name for name in indexes if name in corpora]
        if twice:
            raise ValueError(f"the name {twice[0]!r} stands in indexes and in corpora; give each its own")
        if self.k > self.max_k:
            raise ValueError(f"k={self.k} is over max_k={self.max_k}; raise max_k or lower k")
        if set(self.tools) == {"read_document"}:
            raise ValueError("tools=['read_document'] finds nothing to read; add a search tool")
        if self.search.external is not None:
            raise ValueError(
                "search.external is for agents that search elsewhere; set search=default to serve an index"
            )
        return self


def check_serve(settings: Mapping[str, Any]) -> ServeConfig:
    """Checks composed values. Raises ConfigError for the first setting that is wrong."""
    return check_settings(ServeConfig, settings)
