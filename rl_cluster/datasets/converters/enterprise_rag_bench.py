"""EnterpriseRAG-Bench (onyx-dot-app): one synthetic company's documents and 500 questions.

Documents come as Parquet, as the text export (files `<doc_id>__<stem>.txt`, possibly zipped, possibly with their titles in
`.onyx_metadata.json`), or as the raw JSON that both are made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Literal

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, Split
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_all, read_json, read_text
from rl_cluster.datasets.preparation.source import Source, SourceFile
from rl_cluster.datasets.task import Document
from rl_cluster.errors import DataError

CARD = Card(
    title="EnterpriseRAG-Bench",
    licence="MIT",
    homepage="https://huggingface.co/datasets/onyx-dot-app/EnterpriseRAG-Bench",
    role="training",
    hub=("onyx-dot-app/EnterpriseRAG-Bench",),
    published={"questions": 500, "documents": 511_962},
)
_CORPUS = "enterprise_rag_bench"
_PATTERNS = {
    "parquet": ("documents/*.parquet",),
    "text": ("dsid_*__*.txt",),
    "raw": ("sources/*/*.json", "sources/*/*/*.json", "sources/*/*/*/*.json", "sources/*/*/*/*/*.json"),
}


class Settings(ConverterSettings):
    """`documents`: the layout to read (`auto`: the first that is there, in the order Parquet, text, raw)."""

    documents: Literal["auto", "parquet", "text", "raw"]
    split: Split


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    files = source.find("questions.jsonl") or source.some("the questions", "questions/*.parquet")
    columns = ("question_id", "question_type", "question", "expected_doc_ids", "gold_answer")
    for row in read_all(source, files, columns, ("source_types", "answer_facts")):
        report.count("questions")
        gains = report.gains(row.strings("expected_doc_ids"))
        report.count("judgements", len(gains))
        kind = row.text("question_type")
        yield Draft(
            row.identifier("question_id"),
            row.text("question"),
            _CORPUS,
            gains,
            settings.split,
            answers=(row.text("gold_answer"),),
            metadata={
                "question_type": kind,
                "source_types": row.strings("source_types") if "source_types" in row.values else [],
                "answer_facts": row.strings("answer_facts") if "answer_facts" in row.values else [],
            },
            no_gain=f"no expected_doc_ids ({kind})",
        )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    layouts = _PATTERNS if settings.documents == "auto" else {settings.documents: _PATTERNS[settings.documents]}
    for layout, patterns in layouts.items():
        files = source.find(*patterns)
        if files:
            report.note(f"Documents were read from their {layout} layout.")
            read = {"parquet": _parquet, "text": _text, "raw": _raw}[layout]
            return ((_CORPUS, document) for document in read(source, files))
    return iter(())


def _parquet(source: Source, files: list[SourceFile]) -> Iterator[Document]:
    for row in read_all(source, files, ("doc_id", "source_type", "title", "content")):
        yield Document(
            row.identifier("doc_id"),
            row.text("title", ""),
            row.text("content"),
            {"source_type": row.text("source_type")},
        )


def _text(source: Source, files: list[SourceFile]) -> Iterator[Document]:
    titles = _sidecar_titles(source)
    for number, file in enumerate(files, start=1):
        path = PurePosixPath(file.name)
        doc_id = path.name.partition("__")[0]
        text = read_text(source, file)
        title = titles.get(path.name)
        if title is None:
            title, _, text = text.partition("\n")
            text = text.removeprefix("\n")
        if number % 1000 == 0:
            source.watch("documents", number, len(files))
        yield Document(doc_id, title, text.rstrip("\n"), {"path": str(path.parent)})


def _sidecar_titles(source: Source) -> dict[str, str]:
    """File name to title, from every `.onyx_metadata.json`: there the text begins with the content."""
    titles: dict[str, str] = {}
    for file in source.find(".onyx_metadata.json"):
        for row in Row(file.name, 1, {"files": read_json(source, file)}).rows("files"):
            titles[row.text("filename")] = row.text("title")
    return titles


def _raw(source: Source, files: list[SourceFile]) -> Iterator[Document]:
    for file in files:
        values = read_json(source, file)
        if not isinstance(values, dict):
            raise DataError(f"{file.name}: it holds a {type(values).__name__}; a raw document is one JSON object.")
        row = Row(file.name, 1, values)
        title = row.text(row.text("title_field_name"))
        content = "\n".join(_flat(row, name) for name in row.strings("content_field_names"))
        yield Document(
            row.identifier("dataset_doc_uuid"), title, content, {"path": str(PurePosixPath(file.name).parent)}
        )


def _flat(row: Row, column: str) -> str:
    value: Any = row.raw(column)
    return "\n".join(row.strings(column)) if isinstance(value, list) else row.text(column)
