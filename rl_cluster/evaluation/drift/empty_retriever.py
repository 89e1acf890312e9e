"""No search finds anything: what the agent says then it says without its documents."""

from __future__ import annotations

from collections.abc import Sequence

from rl_cluster.environments.hits import FoundDocument
from rl_cluster.evaluation.drift import base

Settings = base.NoSettings


class Drift(base.Drift):
    @property
    def description(self) -> str:
        return "no search finds anything"

    def client(
        self, client: base.EvaluationSearch, doc_ids: Sequence[str], seed: int, episode: str
    ) -> base.EvaluationSearch:
        return _Empty(client)


class _Empty(base.ChangedSearch):
    async def answer(self, asked: base.Asked) -> list[FoundDocument]:
        return []
