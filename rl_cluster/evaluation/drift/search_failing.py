"""Some searches fail. The agent sees it and may try again; it is no infrastructure failure, which nobody would see."""

from __future__ import annotations

from collections.abc import Sequence

from rl_cluster.config import Fraction, Section
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.errors import SearchRequestError
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """The `rate` of searches that fail."""

    rate: Fraction


class Drift(base.Drift):
    @property
    def description(self) -> str:
        return f"{self.settings.rate:.0%} of the searches fail, which the agent sees"

    def client(
        self, client: base.EvaluationSearch, doc_ids: Sequence[str], seed: int, episode: str
    ) -> base.EvaluationSearch:
        return _Failing(client, "failing", self.settings.rate, seed, episode)


class _Failing(base.SometimesChanged):
    async def changed(self, asked: base.Asked) -> list[FoundDocument]:
        base.note_injection(self.kind)
        raise SearchRequestError(f"{asked.tool} did not answer, try again {base.INJECTED}")
