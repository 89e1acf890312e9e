"""BRIGHT (xlangai/BRIGHT): twelve tasks, each with a corpus of its own; excluded documents leave a question's ranking."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, Split, chosen
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import read_all, read_rows
from rl_cluster.datasets.preparation.source import Source, SourceFile
from rl_cluster.datasets.task import Document

CARD = Card(
    title="BRIGHT",
    licence="CC BY 4.0",
    homepage="https://huggingface.co/datasets/xlangai/BRIGHT",
    role="training",
    hub=("xlangai/BRIGHT",),
    hub_files=("examples/*", "documents/*", "long_documents/*"),
    published={"questions": 1384},
)
_NONE = "N/A"


class Settings(ConverterSettings):
    """`tasks`: those to convert (null: all that are there); `documents`: passages, or whole pages with their own gold ids."""

    tasks: tuple[str, ...] | None = Field(strict=False)
    documents: Literal["documents", "long_documents"]
    split: Split


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    gold = "gold_ids" if settings.documents == "documents" else "gold_ids_long"
    files = _by_task(source.some("the questions of BRIGHT", "examples/*.parquet", "examples/*.jsonl"))
    for task in chosen(settings.tasks, list(files), "dataset.tasks", source.where):
        for row in read_all(source, files[task], ("query", "id", "excluded_ids", gold), ("gold_answer",)):
            report.count("questions")
            gains = report.gains([doc_id for doc_id in row.strings(gold) if doc_id != _NONE])
            report.count("judgements", len(gains))
            # The lists of one task are long and alike: each id is kept once in memory.
            excluded = tuple(sys.intern(doc_id) for doc_id in row.strings("excluded_ids") if doc_id != _NONE)
            answer = row.text("gold_answer", _NONE)
            yield Draft(
                f"{task}/{row.identifier('id')}",
                row.text("query"),
                _corpus(settings, task),
                gains,
                settings.split,
                excluded=excluded,
                answers=() if answer == _NONE else (answer,),
                metadata={"task": task},
                # Both tasks of TheoremQA ask the same questions.
                group=f"theoremqa/{row.identifier('id')}" if task.startswith("theoremqa_") else None,
                no_gain=f"no {gold}",
            )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    folder = settings.documents
    for task, files in _by_task(source.find(f"{folder}/*.parquet", f"{folder}/*.jsonl")).items():
        if settings.tasks is None or task in settings.tasks:
            for file in files:
                for row in read_rows(source, file, ("id", "content")):
                    yield _corpus(settings, task), Document(row.identifier("id"), "", row.text("content"))


def _corpus(settings: Settings, task: str) -> str:
    return f"bright/{task}" if settings.documents == "documents" else f"bright-long/{task}"


def _by_task(files: list[SourceFile]) -> dict[str, list[SourceFile]]:
    """`biology-00000-of-00001.parquet` and `earth-science.jsonl` name their tasks."""
    by_task: dict[str, list[SourceFile]] = {}
    for file in files:
        stem = PurePosixPath(file.plain_name).stem
        head, dash, shard = stem.partition("-0")
        task = head if dash and shard.replace("-of-", "").isdecimal() else stem
        by_task.setdefault(task.replace("-", "_"), []).append(file)
    return by_task
