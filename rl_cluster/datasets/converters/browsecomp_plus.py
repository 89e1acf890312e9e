"""BrowseComp-Plus (texttron): questions that need many searches, encrypted so that they stay out of training data.

Rows are decrypted in memory and never appear in a message; what is written is marked as confidential. The key comes from the
publisher's canary string, which is read at run time (`canary_file`, `CANARY.txt` beside the data, or the publisher's own
`decrypt_dataset.py`) and is no part of this project.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, column_names, read_all, read_text
from rl_cluster.datasets.preparation.source import Source, SourceFile
from rl_cluster.datasets.preparation.trec_files import read_qrels
from rl_cluster.datasets.task import Document
from rl_cluster.errors import DataError

CARD = Card(
    title="BrowseComp-Plus",
    licence="MIT (by mteb's metadata; its repository has no licence file)",
    homepage="https://github.com/texttron/BrowseComp-Plus",
    role="held out",
    hub=("Tevatron/browsecomp-plus", "Tevatron/browsecomp-plus-corpus"),
    published={"questions": 830, "documents": 100_195},
    confidential=True,
)
_QRELS = {"evidence": ("qrel_evidence.txt",), "gold": ("qrel_golds.txt", "qrel_gold.txt")}
_CANARY = re.compile(r"""^DEFAULT_CANARY\s*=\s*(["'])(.+)\1\s*$""", re.MULTILINE)
_COLUMNS = ("query_id", "query", "answer", "gold_docs", "evidence_docs", "negative_docs")


class Settings(ConverterSettings):
    """`relevant`: documents needed for the answer (`evidence`), or those that also state it (`gold`)."""

    relevant: Literal["evidence", "gold"]
    canary_file: str | None


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    key = hashlib.sha256(_canary(source, settings).encode()).digest()
    published = _published_pairs(source, settings)
    for encrypted in read_all(source, _files(source)[0], _COLUMNS):
        row = _decrypted(encrypted, key)
        report.count("questions")
        query_id = row.identifier("query_id")
        gains = report.gains([doc.identifier("docid") for doc in row.rows(f"{settings.relevant}_docs")])
        report.count("judgements", len(gains))
        if published and published.get(query_id, set()) != set(gains):
            raise row.wrong(f"{settings.relevant}_docs", "differs from the published qrels", "fetch both anew")
        yield Draft(
            query_id,
            row.text("query"),
            "browsecomp_plus",
            gains,
            "test",
            answers=(row.text("answer"),),
            metadata={
                "relevant": settings.relevant,
                "hard_negatives": [doc.identifier("docid") for doc in row.rows("negative_docs")],
            },
            no_gain=f"no {settings.relevant}_docs",
        )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    for row in read_all(source, _files(source)[1], ("docid", "text"), ("url",)):
        yield "browsecomp_plus", Document(row.identifier("docid"), "", row.text("text"), {"url": row.text("url", "")})


def _files(source: Source) -> tuple[list[SourceFile], list[SourceFile]]:
    """Encrypted rows and corpus: by name where they are JSONL, by their columns where they are Parquet."""
    rows, corpus = source.find("*encrypted*.jsonl"), source.find("*corpus*.jsonl")
    for file in source.find("*.parquet"):
        there = column_names(source, file)
        (rows if "evidence_docs" in there else corpus if "docid" in there else []).append(file)
    if not rows:
        raise DataError(
            f"{source.where}: the encrypted rows are missing (*encrypted*.jsonl or Parquet); put them there."
        )
    return rows, corpus


def _canary(source: Source, settings: Settings) -> str:
    if settings.canary_file is not None:
        try:
            return Path(settings.canary_file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"dataset.canary_file={settings.canary_file} cannot be read ({error}); correct it."
            ) from error
    for file in source.find("CANARY.txt"):
        return read_text(source, file).rstrip("\r\n")
    for file in source.find("decrypt_dataset.py"):
        match = _CANARY.search(read_text(source, file))
        if match is not None:
            return match[2]
    raise DataError(
        f"{source.where}: the rows are encrypted and no canary is there; write the one of the publisher's decrypt_dataset.py into a "
        "file and set dataset.canary_file."
    )


def _published_pairs(source: Source, settings: Settings) -> dict[str, set[str]]:
    pairs: dict[str, set[str]] = {}
    for file in source.find(*_QRELS[settings.relevant]):
        for judgement in read_qrels(source, file):
            pairs.setdefault(judgement.query_id, set()).add(judgement.doc_id)
    return pairs


def _decrypted(row: Row, key: bytes) -> Row:
    """The row in clear, marked as secret; only `query_id` is published in clear."""
    values = {}
    for column in _COLUMNS:
        try:
            values[column] = row.raw(column) if column == "query_id" else _decrypt(row.raw(column), key)
        except (binascii.Error, UnicodeError):
            # Without the cause: it would hold the bytes.
            raise Row(row.file, row.number, row.values, secret=True).wrong(
                column, "does not decrypt to text", "check the canary, and that the file is whole"
            ) from None
    return Row(row.file, row.number, values, secret=True)


def _decrypt(value: Any, key: bytes) -> Any:
    if isinstance(value, str):
        data = base64.b64decode(value, validate=True)
        return bytes(a ^ b for a, b in zip(data, itertools.cycle(key), strict=False)).decode("utf-8")
    if isinstance(value, list):
        return [_decrypt(item, key) for item in value]
    if isinstance(value, dict):
        # The texts of documents are long, and the plain corpus has them.
        return {name: _decrypt(item, key) for name, item in value.items() if name not in ("text", "url")}
    return value
