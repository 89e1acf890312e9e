"""MuSiQue (StonyBrookNLP/musique): multi-hop questions, each with the paragraphs it was made from among others.

The corpus is the union of the paragraphs of all kept questions, keyed by a hash of title and text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_rows
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import Document

CARD = Card(
    title="MuSiQue",
    licence="CC BY 4.0",
    homepage="https://github.com/StonyBrookNLP/musique",
    role="training",
    published={"ans train": 19_938, "ans dev": 2_417, "ans test": 2_459},
)
_FILE = re.compile(r"musique_(ans|full)_v1\.0_(train|dev|test)\.jsonl")
# The published test split has no labels, so the development split is what results are reported on.
_SPLITS = {"train": "train", "dev": "test"}


class Settings(ConverterSettings):
    """MuSiQue has nothing to choose."""


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    seen: dict[str, str] = {}
    for row, version, split in _rows(source):
        query_id = row.identifier("id")
        report.count(f"{version} {split}")
        if split == "test":
            report.drop(query_id, "test split: no answer, no is_supporting")
            continue
        if not _answerable(row):
            report.drop(query_id, "answerable false: the same id occurs twice in the Full files")
            continue
        paragraphs = list(row.rows("paragraphs"))
        question = row.text("question")
        if query_id in seen:
            if seen[query_id] != question:
                raise row.wrong("id", "stands for two different questions", "make ids unique")
            report.merge("questions that the Ans and the Full files share")
            continue
        seen[query_id] = question
        gold = [_doc_id(paragraph) for paragraph in paragraphs if paragraph.raw("is_supporting") is True]
        gains = report.gains(gold)
        report.count("judgements", len(gains))
        yield Draft(
            query_id,
            question,
            "musique",
            gains,
            _SPLITS[split],
            answers=tuple(dict.fromkeys((row.text("answer"), *row.strings("answer_aliases")))),
            metadata={"hops": len(gold)},
            no_gain="no supporting paragraph",
        )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    seen: set[str] = set()
    for row, _, split in _rows(source):
        if split == "test" or not _answerable(row):
            continue
        for paragraph in row.rows("paragraphs"):
            doc_id = _doc_id(paragraph)
            if doc_id not in seen:
                seen.add(doc_id)
                yield "musique", Document(doc_id, paragraph.text("title"), paragraph.text("paragraph_text"))


def _rows(source: Source) -> Iterator[tuple[Row, str, str]]:
    for file in source.some("the questions of MuSiQue", "musique_*_v1.0_*.jsonl"):
        match = _FILE.search(file.plain_name)
        if match is not None:
            for row in read_rows(source, file, ("id", "paragraphs", "question")):
                yield row, match[1], match[2]


def _answerable(row: Row) -> bool:
    value = row.raw("answerable")
    if not isinstance(value, bool):
        raise row.wrong("answerable", "is neither true nor false", "write one of both")
    return value


def _doc_id(paragraph: Row) -> str:
    return hashlib.sha1(f"{paragraph.text('title')}\n{paragraph.text('paragraph_text')}".encode()).hexdigest()[:16]
