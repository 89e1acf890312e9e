"""BEIR folders: `corpus.jsonl`, `queries.jsonl` and `qrels/{train,dev,test}.tsv`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, Judgements
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import read_all
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.preparation.trec_files import read_qrels
from rl_cluster.datasets.task import Document
from rl_cluster.errors import DataError

CARD = Card(
    title="BEIR layout",
    licence="that of the data in it",
    homepage="https://github.com/beir-cellar/beir",
    role="own",
)
_SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}


class Settings(ConverterSettings):
    """`label` names the set in task ids and its corpus; `locale` is its language."""

    label: str
    locale: str


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    questions = {}
    files = source.some("the questions", "queries.jsonl", "queries.parquet", "queries/*.parquet")
    for row in read_all(source, files, ("_id", "text")):
        report.count("questions")
        if row.identifier("_id") in questions:
            raise row.wrong("_id", "stands twice", "make question ids unique")
        questions[row.identifier("_id")] = row.text("text")
    asked: dict[str, str] = {}
    for file in source.some("the judgements", "qrels/*.tsv"):
        split = _SPLITS.get(PurePosixPath(file.plain_name).stem)
        if split is None:
            raise DataError(f"{file.name}: the name is no split; use {', '.join(f'{name}.tsv' for name in _SPLITS)}.")
        judged: dict[str, Judgements] = {}
        for judgement in read_qrels(source, file):
            report.count("judgements")
            judged.setdefault(judgement.query_id, Judgements()).add(judgement.doc_id, judgement.gain, report)
        for query_id, judgements in judged.items():
            if query_id not in questions:
                report.drop(query_id, "judged, but no question")
                continue
            if query_id in asked:
                raise DataError(
                    f"{file.name}: the question {query_id!r} is in {asked[query_id]} too; give it one split."
                )
            asked[query_id] = file.name
            yield Draft(
                query_id,
                questions[query_id],
                settings.label,
                judgements.positive,
                split,
                locale=settings.locale,
                judged_zero=judgements.zero,
                no_gain="no judgement above 0",
            )
    for query_id in questions:
        if query_id not in asked:
            report.drop(query_id, "no judgement")


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    files = source.find("corpus.jsonl", "corpus.parquet", "corpus/*.parquet")
    for row in read_all(source, files, ("_id", "text"), ("title", "metadata")):
        title, text = row.text("title", ""), row.text("text")
        document = Document(row.identifier("_id"), title, text, row.mapping("metadata"), settings.locale)
        yield settings.label, document
