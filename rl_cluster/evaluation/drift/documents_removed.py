"""Documents are gone, relevant ones among them; these stay in the ideal ranking, so that the loss shows."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated

from pydantic import Field

from rl_cluster.config import Section
from rl_cluster.datasets.task import Document
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """`share` of the documents that are gone."""

    share: Annotated[float, Field(gt=0, lt=1)]


class Drift(base.Drift):
    needs_documents = True

    @property
    def description(self) -> str:
        return f"{self.settings.share:.0%} of the documents are gone"

    def documents(
        self, documents: Sequence[Document], taken: Container[str], gold: Container[str], seed: int
    ) -> Sequence[Document]:
        return [d for d in documents if base.random_of(seed, "removed", d.doc_id).random() >= self.settings.share]
