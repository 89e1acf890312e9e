"""MLQA (facebookresearch/MLQA): questions in seven languages over paragraphs in seven; the paragraph is the one relevant document.

Only the data is read, never the repository's code, whose licence differs. One id occurs in the files of all its languages,
hence the query id `<id>.<context language>.<question language>`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.source import Source, SourceFile
from rl_cluster.datasets.preparation.squad import read_paragraphs
from rl_cluster.datasets.task import Document

CARD = Card(
    title="MLQA",
    licence="CC BY-SA 3.0",
    homepage="https://github.com/facebookresearch/MLQA",
    role="training",
)
_FILE = re.compile(r"(dev|test)-context-([a-z]{2})-question-([a-z]{2})\.json$")
_SPLITS = {"dev": "train", "test": "test"}
_Languages = tuple[Literal["en", "ar", "de", "es", "hi", "vi", "zh"], ...] | None


class Settings(ConverterSettings):
    """`contexts`, `questions`: languages to read (null: all that are there). `parts`: `dev` is trained on, `test` is not."""

    contexts: _Languages = Field(strict=False)
    questions: _Languages = Field(strict=False)
    parts: tuple[Literal["dev", "test"], ...] = Field(strict=False, min_length=1)


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    for file, part, context_language, question_language in _files(source, settings):
        for paragraph in read_paragraphs(source, file):
            for question in paragraph.questions:
                report.count("questions")
                yield Draft(
                    f"{question.question_id}.{context_language}.{question_language}",
                    question.text,
                    f"mlqa/{context_language}",
                    {_doc_id(context_language, paragraph.context): 1.0},
                    _SPLITS[part],
                    answers=question.answers,
                    locale=question_language,
                    metadata={"context_language": context_language},
                    # The translations of a question stay together.
                    group=question.question_id,
                )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    seen: set[str] = set()
    for file, _, language, _ in _files(source, settings):
        for paragraph in read_paragraphs(source, file):
            doc_id = _doc_id(language, paragraph.context)
            if doc_id not in seen:
                seen.add(doc_id)
                yield f"mlqa/{language}", Document(doc_id, paragraph.title, paragraph.context, locale=language)


def _doc_id(language: str, context: str) -> str:
    return f"{language}:{hashlib.sha1(context.encode()).hexdigest()[:16]}"


def _files(source: Source, settings: Settings) -> Iterator[tuple[SourceFile, str, str, str]]:
    for file in source.some("the questions of MLQA", "*-context-*-question-*.json"):
        match = _FILE.search(file.plain_name)
        if match is None or match[1] not in settings.parts:
            continue
        if settings.contexts is not None and match[2] not in settings.contexts:
            continue
        if settings.questions is not None and match[3] not in settings.questions:
            continue
        yield file, match[1], match[2], match[3]
