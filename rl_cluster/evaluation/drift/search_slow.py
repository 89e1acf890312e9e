"""Some searches take longer; they are counted, and change nothing that the agent is shown.

A delay that reaches the deadline of a search is one that the agent sees: there is no answer, and it may try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from rl_cluster.config import Fraction, Seconds, Section
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.errors import SearchRequestError
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """A `rate` of searches that take `delay_s` seconds more."""

    rate: Fraction
    delay_s: Annotated[Seconds, Field(le=600)]


class Drift(base.Drift):
    @property
    def description(self) -> str:
        return f"{self.settings.rate:.0%} of the searches take {self.settings.delay_s:g} s more, or are given up at search.timeout_s"

    def client(
        self, client: base.EvaluationSearch, doc_ids: Sequence[str], seed: int, episode: str
    ) -> base.EvaluationSearch:
        return _Slow(client, self.settings, seed, episode)


class _Slow(base.SometimesChanged):
    def __init__(self, client: base.EvaluationSearch, settings: Settings, seed: int, episode: str) -> None:
        super().__init__(client, "slow", settings.rate, seed, episode)
        self.delay_s = settings.delay_s

    async def changed(self, asked: base.Asked) -> list[FoundDocument]:
        if self.timeout_s is not None and self.delay_s >= self.timeout_s:
            await asyncio.sleep(self.timeout_s)
            base.note_injection(self.kind)
            raise SearchRequestError(f"{asked.tool} did not answer in time, try again {base.INJECTED}")
        await asyncio.sleep(self.delay_s)
        found = await self.unchanged(asked)
        base.note_injection(self.kind)  # a query that the service refuses is the agent's fault, late or not
        return found
