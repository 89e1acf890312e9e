"""NQ-open: short questions with answers and no documents; judged by the answer alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import read_rows
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import Document

CARD = Card(
    title="NQ-open",
    licence="CC BY-SA 3.0",
    homepage="https://github.com/google-research-datasets/natural-questions",
    role="held out",
    published={"dev": 3_610},
    ships_documents=False,
)
_FILE = re.compile(r"NQ-open\.(?:efficientqa\.)?(train|dev|test)\b.*\.jsonl$")
_SPLITS = {"train": "train", "dev": "test", "test": "test"}


class Settings(ConverterSettings):
    """`corpus`: the name of the collection that is searched for answers, prepared elsewhere."""

    corpus: str


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    for file in source.some("the questions of NQ-open", "NQ-open.*.jsonl"):
        match = _FILE.search(file.plain_name)
        if match is None:
            continue
        for index, row in enumerate(read_rows(source, file, ("question", "answer"))):
            report.count(match[1])
            answers = tuple(dict.fromkeys(row.strings("answer")))
            yield Draft(
                f"{match[1]}/{index}",
                row.text("question"),
                settings.corpus,
                {},
                _SPLITS[match[1]],
                answers=answers,
                answer_only=True,
                no_gain="no answer",
            )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    return iter(())
