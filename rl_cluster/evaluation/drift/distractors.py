"""The collection grows by documents that speak of the same things and answer nothing.

They are mixed from documents that no question has a gain for: a piece of a relevant one may be all that makes it relevant.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from rl_cluster.config import Section
from rl_cluster.datasets.task import Document
from rl_cluster.evaluation.drift import base


class Settings(Section):
    """`factor` distractors for each document."""

    factor: Annotated[int, Field(ge=1, le=100)]


class Drift(base.Drift):
    needs_documents = True

    @property
    def description(self) -> str:
        return f"{self.settings.factor} distractors for each document, mixed from the texts of irrelevant ones"

    def problem(self, doc_ids: Sequence[str], gold: Container[str]) -> str:
        if any(doc_id not in gold for doc_id in doc_ids):
            return ""
        return f"needs a document that no question has a gain for, but all {len(doc_ids)} have one"

    def documents(
        self, documents: Sequence[Document], taken: Container[str], gold: Container[str], seed: int
    ) -> Sequence[Document]:
        """Each distractor has the title of one document and halves of the texts of two others, all by chance."""
        grown, mixed = list(documents), [document for document in documents if document.doc_id not in gold]
        for number in range(self.settings.factor * len(documents)):
            rng = base.random_of(seed, "distractor", number)
            named, first, second = (mixed[rng.randrange(len(mixed))] for _ in range(3))
            text = f"{_half(first.text, 0)} {_half(second.text, 1)}"
            doc_id = base.free_id(f"distractor-{number}", taken)
            grown.append(replace(first, doc_id=doc_id, title=named.title, text=text))
        return grown


def _half(text: str, which: int) -> str:
    words = text.split()
    middle = len(words) // 2
    return " ".join(words[middle:] if which else words[:middle])
