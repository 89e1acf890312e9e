"""One's own data as JSONL: `tasks.jsonl` and `corpus.jsonl`.

A task has `query_id`, `prompt` and `gains` (an object from document id to gain, or a list of ids that gain 1 each; empty where
answers alone are judged), and may have `excluded`, `answers`, `split`, `corpus`, `locale` and `metadata`. A document has `doc_id` and `text`, and may have
`title`, `corpus`, `locale` and `metadata`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, Split
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_all
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import MAX_GAIN, Document, is_gain

CARD = Card(title="own JSONL", licence="your own", homepage="", role="own")
_LOCALE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
_SPLITS = {split: split for split in ("train", "validation", "test")}


class Settings(ConverterSettings):
    """`label` names the set, and the corpus of rows that name none; `split` and `locale` are for rows that name none."""

    label: str
    locale: str
    split: Split


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    for row in read_all(source, source.some("the tasks", "tasks.jsonl"), ("query_id", "prompt", "gains")):
        report.count("questions")
        gains = _gains(row, report)
        answers = tuple(row.strings("answers")) if "answers" in row.values else ()
        yield Draft(
            row.identifier("query_id"),
            row.text("prompt"),
            row.text("corpus", settings.label),
            {doc_id: gain for doc_id, gain in gains.items() if gain > 0},
            row.chosen("split", _SPLITS, "the splits") if "split" in row.values else settings.split,
            excluded=tuple(row.strings("excluded")) if "excluded" in row.values else (),
            answers=answers,
            locale=_locale(row, settings.locale),
            judged_zero=tuple(doc_id for doc_id, gain in gains.items() if gain == 0),
            metadata=row.mapping("metadata"),
            answer_only=not gains,
        )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    for row in read_all(source, source.find("corpus.jsonl"), ("doc_id", "text")):
        title, text, locale = row.text("title", ""), row.text("text"), _locale(row, "")
        document = Document(row.identifier("doc_id"), title, text, row.mapping("metadata"), locale)
        yield row.text("corpus", settings.label), document


def _locale(row: Row, otherwise: str) -> str:
    locale = row.text("locale", otherwise)
    if locale and not _LOCALE.fullmatch(locale):
        raise row.wrong("locale", "is no language tag", "write one such as en, de or zh-TW")
    return locale


def _gains(row: Row, report: Report) -> dict[str, float]:
    value = row.raw("gains")
    if isinstance(value, list):
        return report.gains(row.strings("gains"))
    if not isinstance(value, dict):
        raise row.wrong("gains", "is neither an object nor a list", "write {document id: gain} or a list of ids")
    for gain in value.values():
        if not is_gain(gain):
            raise row.wrong("gains", f"holds {gain!r:.40}, which is no gain", f"write numbers from 0 to {MAX_GAIN:g}")
    return {doc_id: float(gain) for doc_id, gain in value.items()}
