"""XQuAD (google-deepmind/xquad): parallel paragraphs and questions in several languages, for checks of retrieval.

Paragraphs have no id and are numbered `<article>-<paragraph>`, equally in all languages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import Field

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, chosen
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.source import Source, SourceFile
from rl_cluster.datasets.preparation.squad import read_paragraphs
from rl_cluster.datasets.task import Document

CARD = Card(
    title="XQuAD",
    licence="CC BY-SA 4.0",
    homepage="https://github.com/google-deepmind/xquad",
    role="held out",
)
_FILE = re.compile(r"xquad\.([a-z]{2})\.json$")


class Settings(ConverterSettings):
    """`languages`: those to read, questions and paragraphs (null: all). `context`: search paragraphs of this language instead."""

    languages: tuple[str, ...] | None = Field(strict=False)
    context: str | None


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    files = _files(source)
    for language in chosen(settings.languages, list(files), "dataset.languages", source.where):
        for paragraph in read_paragraphs(source, files[language]):
            for question in paragraph.questions:
                report.count("questions")
                yield Draft(
                    f"{question.question_id}.{language}",
                    question.text,
                    f"xquad/{settings.context or language}",
                    {f"{paragraph.article}-{paragraph.number}": 1.0},
                    "test",
                    answers=question.answers,
                    locale=language,
                    group=question.question_id,
                )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    files = _files(source)
    wanted = settings.languages if settings.context is None else (settings.context,)
    for language in chosen(wanted, list(files), "dataset.context", source.where):
        for paragraph in read_paragraphs(source, files[language]):
            doc_id = f"{paragraph.article}-{paragraph.number}"
            yield f"xquad/{language}", Document(doc_id, paragraph.title, paragraph.context, locale=language)


def _files(source: Source) -> dict[str, SourceFile]:
    found = source.some("the questions of XQuAD", "xquad.*.json")
    return {match[1]: file for file in found if (match := _FILE.search(file.plain_name))}
