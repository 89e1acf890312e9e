"""What a converter is: a module of `rl_cluster.datasets.converters` with a `CARD`, its `Settings`, and two functions.

    tasks(source, settings, report) -> Iterator[Draft]
    documents(source, settings, report) -> Iterator[tuple[str, Document]]     (corpus name, document)

Both stream and may read the same files. `documents` yields nothing where the source holds no documents at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field

from rl_cluster.config import Section
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import Document
from rl_cluster.errors import DataError

Gain = Annotated[float, Field(ge=0)]
Split = Literal["train", "validation", "test"]


class ConverterSettings(Section):
    """The settings that every converter has; `name` is the converter's own."""

    name: str


@dataclass(frozen=True)
class Card:
    """What is known of a data set as published.

    `hub` lists its repositories on the Hugging Face hub, `hub_files` the patterns of what is fetched from them (all, where
    empty), and `revision` the commit that the project pins; `published` the
    figures its publisher states (`questions`, `judgements`, `documents`). Where `ships_documents` is false, tasks alone are
    no error. `confidential` text must not be published or trained on.
    """

    title: str
    licence: str
    homepage: str
    role: Literal["training", "held out", "own"]
    hub: tuple[str, ...] = ()
    hub_files: tuple[str, ...] = ()
    revision: str | None = None
    published: Mapping[str, int] = field(default_factory=dict)
    ships_documents: bool = True
    confidential: bool = False


@dataclass
class Draft:
    """One question as a converter reads it; the pipeline names it, splits it and checks its gains.

    `group` holds questions together in one split (default: each is its own group). A question without a positive gain is
    dropped, unless it has `answers` and its set judges answers only (`answer_only`).
    """

    query_id: str
    prompt: str
    corpus: str
    gains: dict[str, float]
    split: str
    excluded: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    locale: str = "en"
    judged_zero: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    group: str | None = None
    answer_only: bool = False
    no_gain: str = "no document with a gain above 0"


_S = TypeVar("_S", bound=ConverterSettings, contravariant=True)


class Converter(Protocol[_S]):
    """The module's shape."""

    CARD: Card
    Settings: type[Any]

    def tasks(self, source: Source, settings: _S, report: Report) -> Iterator[Draft]: ...
    def documents(self, source: Source, settings: _S, report: Report) -> Iterator[tuple[str, Document]]: ...


@dataclass
class Judgements:
    """Graded labels of one question, met pair by pair; a pair labelled twice keeps its highest gain."""

    gains: dict[str, float] = field(default_factory=dict)

    def add(self, doc_id: str, gain: float, report: Report) -> None:
        before = self.gains.get(doc_id)
        if before is not None:
            report.merge("pairs labelled twice")
        if before is None or gain > before:
            self.gains[doc_id] = gain

    @property
    def positive(self) -> dict[str, float]:
        return {doc_id: gain for doc_id, gain in self.gains.items() if gain > 0}

    @property
    def zero(self) -> tuple[str, ...]:
        return tuple(doc_id for doc_id, gain in self.gains.items() if gain <= 0)


def chosen(wanted: tuple[str, ...] | None, there: list[str], setting: str, where: str) -> list[str]:
    """The parts of a data set to convert: all that are there, or those asked for. Raises DataError for one that is not."""
    missing = [part for part in wanted or () if part not in there]
    if missing:
        raise DataError(
            f"{where}: {setting} asks for {missing[0]!r}, which is not there; choose from: {', '.join(there)}."
        )
    return [part for part in there if wanted is None or part in wanted]
