"""Every search finds documents by chance: what is left of the score does not come from searching."""

from __future__ import annotations

from collections.abc import Sequence

from rl_cluster.environments.hits import FoundDocument
from rl_cluster.evaluation.drift import base

Settings = base.NoSettings


class Drift(base.Drift):
    needs_documents = True

    @property
    def description(self) -> str:
        return "every search finds documents by chance"

    def client(
        self, client: base.EvaluationSearch, doc_ids: Sequence[str], seed: int, episode: str
    ) -> base.EvaluationSearch:
        return _Random(client, doc_ids, seed)


class _Random(base.ChangedSearch):
    def __init__(self, client: base.EvaluationSearch, doc_ids: Sequence[str], seed: int) -> None:
        super().__init__(client)
        self.doc_ids = doc_ids
        self.seed = seed

    async def answer(self, asked: base.Asked) -> list[FoundDocument]:
        banned = set(asked.excluded)
        rng = base.random_of(self.seed, "random", asked.tool, asked.query)
        drawn = rng.sample(self.doc_ids, min(asked.k + len(banned), len(self.doc_ids)))
        return [FoundDocument(doc_id, "untitled", "") for doc_id in drawn if doc_id not in banned][: asked.k]
