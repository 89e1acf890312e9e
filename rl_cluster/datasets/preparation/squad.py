"""The SQuAD layout: articles, paragraphs, questions with answers at character offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rl_cluster.datasets.preparation.rows import Row, read_json
from rl_cluster.datasets.preparation.source import Source, SourceFile


@dataclass(frozen=True)
class Question:
    """One question; `answers` are distinct, in the language of the paragraph."""

    question_id: str
    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Paragraph:
    """One paragraph, by its place: `article` and `number` count from 0."""

    article: int
    number: int
    title: str
    context: str
    questions: list[Question]


def read_paragraphs(source: Source, file: SourceFile) -> Iterator[Paragraph]:
    """All paragraphs of a file. Raises DataError for another layout, or an answer that does not stand at its offset."""
    articles = Row(file.name, 1, {"data": _data(source, file)}).rows("data")
    for article_number, article in enumerate(articles):
        # Rows are numbered by article from here on.
        article = Row(file.name, article_number + 1, article.values)
        for number, paragraph in enumerate(article.rows("paragraphs")):
            context = paragraph.text("context")
            questions = [_question(row, context) for row in paragraph.rows("qas")]
            yield Paragraph(article_number, number, article.text("title", ""), context, questions)


def _data(source: Source, file: SourceFile) -> object:
    content = read_json(source, file)
    return content.get("data") if isinstance(content, dict) else content


def _question(row: Row, context: str) -> Question:
    answers = []
    for answer in row.rows("answers"):
        text, start = answer.text("text"), answer.raw("answer_start")
        if not isinstance(start, int) or context[start : start + len(text)] != text:
            raise answer.wrong(
                "answer_start", f"is not where the paragraph says {text!r}", "count characters, not bytes"
            )
        answers.append(text)
    return Question(row.identifier("id"), row.text("question"), tuple(dict.fromkeys(answers)))
