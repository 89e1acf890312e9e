"""Documents gave way to newer versions under new ids, which say what they replace; gains go over to them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from rl_cluster.config import Section
from rl_cluster.datasets.task import Document, Task
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """`share` of the documents that have a newer version."""

    share: Annotated[float, Field(gt=0, le=1)]


class Drift(base.Drift):
    needs_documents = True

    @property
    def description(self) -> str:
        return f"{self.settings.share:.0%} of the documents are replaced by newer versions under new ids"

    def documents(
        self, documents: Sequence[Document], taken: Container[str], gold: Container[str], seed: int
    ) -> Sequence[Document]:
        return [
            _newer(document, taken) if self._replaced(document.doc_id, seed) else document for document in documents
        ]

    def tasks(self, tasks: Sequence[Task], taken: Container[str], seed: int) -> Sequence[Task]:
        def renamed(doc_id: str) -> str:
            return _new_id(doc_id, taken) if self._replaced(doc_id, seed) else doc_id

        return [
            replace(
                task,
                gains={renamed(doc_id): gain for doc_id, gain in task.gains.items()},
                excluded=tuple(map(renamed, task.excluded)),
            )
            for task in tasks
        ]

    def _replaced(self, doc_id: str, seed: int) -> bool:
        return base.random_of(seed, "replaced", doc_id).random() < self.settings.share


def _newer(document: Document, taken: Container[str]) -> Document:
    text = f"New version, replaces {document.doc_id}. {document.text}"
    doc_id = _new_id(document.doc_id, taken)
    return replace(document, doc_id=doc_id, title=f"{document.title} (new version)", text=text)


def _new_id(doc_id: str, taken: Container[str]) -> str:
    return base.free_id(f"{doc_id}-v2", taken)
