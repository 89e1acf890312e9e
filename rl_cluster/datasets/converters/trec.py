"""TREC topics and qrels with a corpus in JSONL or Parquet.

A corpus row may wrap its columns in `fields`; its id is `doc_id`, `docid`, `_id` or `id`, its text `text`, `contents` or `body`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, Judgements, Split
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_all
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.preparation.trec_files import read_qrels, read_topics
from rl_cluster.datasets.task import Document

CARD = Card(
    title="TREC layout",
    licence="that of the data in it",
    homepage="https://trec.nist.gov/data.html",
    role="own",
)
_IDS = ("doc_id", "docid", "docno", "_id", "id")
_TEXTS = ("text", "contents", "body")


class Settings(ConverterSettings):
    """`label` names the set and its corpus, `locale` is its language; `topics`, `qrels` and `corpus` are patterns of file names."""

    label: str
    locale: str
    split: Split
    topics: str
    qrels: str
    corpus: str


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    judged: dict[str, Judgements] = {}
    for file in source.some("the judgements", settings.qrels):
        for judgement in read_qrels(source, file):
            report.count("judgements")
            judged.setdefault(judgement.query_id, Judgements()).add(judgement.doc_id, judgement.gain, report)
    asked = set()
    for file in source.some("the topics", settings.topics):
        for query_id, text in read_topics(source, file):
            report.count("questions")
            asked.add(query_id)
            judgements = judged.get(query_id, Judgements())
            yield Draft(
                query_id,
                text,
                settings.label,
                judgements.positive,
                settings.split,
                locale=settings.locale,
                judged_zero=judgements.zero,
                no_gain="no judgement above 0" if query_id in judged else "no judgement",
            )
    for query_id in judged:
        if query_id not in asked:
            report.drop(query_id, "judged, but no topic")


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    for outer in read_all(source, source.find(settings.corpus), (), (*_IDS, *_TEXTS, "title", "fields")):
        inner = outer.values.get("fields")
        row = Row(outer.file, outer.number, inner) if isinstance(inner, Mapping) else outer
        id_column = next((name for name in _IDS if name in row.values), "doc_id")
        text_column = next((name for name in _TEXTS if name in row.values), "text")
        title, text = row.text("title", ""), row.text(text_column)
        yield settings.label, Document(row.identifier(id_column), title, text, locale=settings.locale)
