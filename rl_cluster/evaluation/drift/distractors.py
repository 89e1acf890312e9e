"""The collection grows by documents that speak of the same things and answer nothing."""

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
    @property
    def description(self) -> str:
        return f"{self.settings.factor} distractors for each document, mixed from the texts of others"

    def documents(self, documents: Sequence[Document], taken: Container[str], seed: int) -> Sequence[Document]:
        """Each distractor has the title of one document and halves of the texts of two others, all by chance."""
        grown = list(documents)
        for number in range(self.settings.factor * len(documents)):
            rng = base.random_of(seed, "distractor", number)
            named, first, second = (documents[rng.randrange(len(documents))] for _ in range(3))
            text = f"{_half(first.text, 0)} {_half(second.text, 1)}"
            doc_id = base.free_id(f"distractor-{number}", taken)
            grown.append(replace(first, doc_id=doc_id, title=named.title, text=text))
        return grown


def _half(text: str, which: int) -> str:
    words = text.split()
    middle = len(words) // 2
    return " ".join(words[middle:] if which else words[:middle])
