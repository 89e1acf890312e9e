"""Some searches take longer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from rl_cluster.config import Fraction, Seconds, Section
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """A `rate` of searches that take `delay_s` seconds more."""

    rate: Fraction
    delay_s: Annotated[Seconds, Field(le=600)]


class Drift(base.Drift):
    @property
    def description(self) -> str:
        return f"{self.settings.rate:.0%} of the searches take {self.settings.delay_s:g} s more"

    def client(self, client: base.EvaluationSearch, doc_ids: Sequence[str], seed: int) -> base.EvaluationSearch:
        return _Slow(client, self.settings, seed)


class _Slow(base.ChangedSearch):
    def __init__(self, client: base.EvaluationSearch, settings: Settings, seed: int) -> None:
        super().__init__(client)
        self.settings = settings
        self.seed = seed
        self.asked: Counter[tuple[str, str]] = Counter()

    async def search(
        self,
        tool: str,
        query: str,
        k: int,
        excluded: tuple[str, ...],
        filters: Mapping[str, Any] | None = None,
        snippets: bool = True,
    ) -> list[FoundDocument]:
        self.asked[tool, query] += 1
        if base.random_of(self.seed, "slow", tool, query, self.asked[tool, query]).random() < self.settings.rate:
            await asyncio.sleep(self.settings.delay_s)
        return await self.inner.search(tool, query, k, excluded, filters, snippets)
