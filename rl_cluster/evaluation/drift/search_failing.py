"""Some searches fail. The agent sees it and may try again; it is no infrastructure failure, which nobody would see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.config import Fraction, Section
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.errors import SearchRequestError
from rl_cluster.evaluation.drift import base
from rl_cluster.evaluation.records import INJECTED


class Settings(Section):
    """The `rate` of searches that fail."""

    rate: Fraction


class Drift(base.Drift):
    @property
    def description(self) -> str:
        return f"{self.settings.rate:.0%} of the searches fail, which the agent sees"

    def client(self, client: base.EvaluationSearch, doc_ids: Sequence[str], seed: int) -> base.EvaluationSearch:
        return _Failing(client, self.settings.rate, seed)


class _Failing(base.ChangedSearch):
    def __init__(self, client: base.EvaluationSearch, rate: float, seed: int) -> None:
        super().__init__(client)
        self.rate = rate
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
        self.asked[tool, query] += 1  # the same query may succeed the next time
        if base.random_of(self.seed, "failing", tool, query, self.asked[tool, query]).random() < self.rate:
            raise SearchRequestError(f"{tool} did not answer, try again {INJECTED}")
        return await self.inner.search(tool, query, k, excluded, filters, snippets)
