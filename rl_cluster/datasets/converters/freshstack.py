"""FreshStack (freshstack/queries-oct-2024, corpus-oct-2024): questions on code, judged by the nuggets of their answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, chosen
from rl_cluster.datasets.preparation.ids import document_id
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_all
from rl_cluster.datasets.preparation.source import Source, SourceFile
from rl_cluster.datasets.task import Document

CARD = Card(
    title="FreshStack",
    licence="CC BY-SA 4.0",
    homepage="https://github.com/fresh-stack/freshstack",
    role="held out",
    hub=("freshstack/queries-oct-2024", "freshstack/corpus-oct-2024"),
    published={"questions": 672},
)


class Settings(ConverterSettings):
    """`gains`: the number of nuggets that a document supports (`official_sum`), or 1 (`binary`). `topics`: null for all."""

    gains: Literal["official_sum", "binary"]
    topics: tuple[str, ...] | None = Field(strict=False)


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    files = _by_topic(source.some("the questions of FreshStack", "queries-oct-2024/*/*.parquet"))
    for topic in chosen(settings.topics, list(files), "dataset.topics", source.where):
        for row in read_all(
            source, files[topic], ("query_id", "query_title", "query_text", "nuggets"), ("answer_text",)
        ):
            report.count("questions")
            query_id = row.identifier("query_id")
            nuggets = {nugget.identifier("_id"): nugget for nugget in row.rows("nuggets")}
            foreign = [nugget_id for nugget_id in nuggets if nugget_id.rpartition("_")[0] != query_id]
            if foreign:
                raise row.wrong("nuggets", f"holds {foreign[0]!r}, a nugget of another question", "remove it")
            answer = row.text("answer_text", "")
            yield Draft(
                f"{topic}/{query_id}",
                f"{row.text('query_title')} {row.text('query_text')}",
                f"freshstack/{topic}",
                _gains(list(nuggets.values()), settings.gains == "official_sum"),
                "test",
                answers=(answer,) if answer else (),
                metadata={
                    "topic": topic,
                    "subtopics": {
                        nugget_id: list(map(document_id, n.strings("relevant_corpus_ids")))
                        for nugget_id, n in nuggets.items()
                    },
                },
                no_gain="no nugget has a relevant document",
            )


def _gains(nuggets: list[Row], official_sum: bool) -> dict[str, float]:
    """Relevant to one nugget and judged non-relevant to another is relevant; the official sum keeps judged zeros."""
    gains: dict[str, float] = {}
    for nugget in nuggets:
        for doc_id in dict.fromkeys(nugget.strings("relevant_corpus_ids")):
            gains[doc_id] = gains.get(doc_id, 0.0) + 1.0 if official_sum else 1.0
        if official_sum:
            for doc_id in nugget.strings("non_relevant_corpus_ids"):
                gains.setdefault(doc_id, 0.0)
    return gains


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    for topic, files in _by_topic(source.find("corpus-oct-2024/*/*.parquet")).items():
        if settings.topics is not None and topic not in settings.topics:
            continue
        # The official loader keeps the last row of a repeated id, so ids are read once before the texts.
        last = {row.identifier("_id"): number for number, row in enumerate(read_all(source, files, ("_id",)))}
        for number, row in enumerate(read_all(source, files, ("_id", "text"), ("metadata",))):
            doc_id = row.identifier("_id")
            if last[doc_id] != number:
                report.merge("rows with an id that stands again below (the last one wins)")
                continue
            yield f"freshstack/{topic}", Document(doc_id, "", row.text("text"), row.mapping("metadata"))


def _by_topic(files: list[SourceFile]) -> dict[str, list[SourceFile]]:
    by_topic: dict[str, list[SourceFile]] = {}
    for file in files:
        by_topic.setdefault(file.name.split("/")[-2], []).append(file)
    return by_topic
