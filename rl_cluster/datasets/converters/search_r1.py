"""The Search-R1 layout: Parquet rows with a templated prompt and golden answers; a corpus of `"Title"\\ntext` contents.

The bare question is the prompt: the template belongs to the agent that was trained with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_all
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import Document

CARD = Card(
    title="Search-R1 layout",
    licence="that of the data in it (NQ: CC BY-SA 3.0; HotpotQA: CC BY-SA 4.0)",
    homepage="https://github.com/PeterGriffinJin/Search-R1",
    role="own",
    ships_documents=False,
)
_SPLITS = {"train": "train", "dev": "test", "test": "test", "validation": "validation"}


class Settings(ConverterSettings):
    """`corpus`: the pattern of the corpus files' names."""

    corpus: str


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    files = source.some("the questions", "train.parquet", "test.parquet", "dev.parquet", "*_search/*.parquet")
    for row in read_all(source, files, ("id", "question", "golden_answers", "data_source", "extra_info")):
        report.count("questions")
        yield Draft(
            f"{row.identifier('data_source')}/{row.identifier('id')}",
            row.text("question"),
            "search_r1",
            {},
            _split(row),
            answers=tuple(dict.fromkeys(row.strings("golden_answers"))),
            metadata={"data_source": row.identifier("data_source")},
            answer_only=True,
            no_gain="no golden answer",
        )


def _split(row: Row) -> str:
    info = row.raw("extra_info")
    if not isinstance(info, dict):
        raise row.wrong("extra_info", "is no object", "write split and index")
    return Row(row.file, row.number, info).chosen("split", _SPLITS)


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    for row in read_all(source, source.find(settings.corpus), ("id", "contents")):
        title, _, text = row.text("contents").partition("\n")
        yield "search_r1", Document(row.identifier("id"), title.strip().strip('"'), text)
