"""Writes `corpus.parquet` from a stream of documents, in row groups of at most 64 MiB, and knows every id."""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from rl_cluster.datasets.corpus import CORPUS_SCHEMA
from rl_cluster.datasets.preparation.ids import document_id
from rl_cluster.datasets.preparation.kept_rows import Covered, KeptRows
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.task import Document
from rl_cluster.datasets.text import ID_RULE, limited
from rl_cluster.errors import DataError

MAX_ROW_GROUP_BYTES = 64 << 20
_FLUSH_BYTES = 56 << 20  # what Parquet adds to the bytes of the columns must find room too
_BATCH_ROWS = 512
_BATCH_CHARACTERS = 1 << 20


def open_corpus_file(path: Path) -> pq.ParquetWriter:
    """A Parquet file of documents; texts hardly repeat, so nothing is gained by a dictionary of them."""
    return pq.ParquetWriter(path, CORPUS_SCHEMA, compression="zstd", use_dictionary=False)


class CorpusWriter:
    """Context manager; the file is whole only after a clean exit, and the caller moves it into place.

    A document that stands twice word by word counts once; another text under the same id is a DataError. The stream of documents
    is given from its beginning also where `kept` holds row groups: those of its documents are passed over then.
    """

    def __init__(self, path: Path, report: Report, kept: KeptRows | None = None):
        self.counts: Counter[str] = Counter()
        self._report = report
        self._writer = open_corpus_file(path)
        self._seen: dict[str, dict[str, int]] = {}
        self._rows: list[tuple[str, str, str, str, str, str]] = []
        self._characters = 0
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._kept = kept
        self._covered = Covered()
        self._before_batch = Covered()
        self._to_pass = self._take_over()

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._end_batch()
            self._end_row_group()
        self._writer.close()

    def add(self, corpus: str, document: Document, place: tuple[str, int]) -> str:
        """Returns the id that the corpus has it under. Raises DataError for an id that is blank, or stood before with another text; `place` is the document's file and row."""
        doc_id = document_id(document.doc_id)
        if self._to_pass:
            self._to_pass -= 1
            return doc_id
        seen = self._seen.setdefault(corpus, {})
        self._covered.documents += 1
        at = f"{place[0]}: row {place[1]}: the document id {limited(repr(document.doc_id), 80)}"
        if doc_id != document.doc_id:
            self._merge("document ids without their line breaks, outer blanks or what is too long")
        if not doc_id:
            raise DataError(f"{at} is blank; {ID_RULE}.")
        content = hash((document.title, document.text))
        before = seen.get(doc_id)
        if before is not None:
            if before != content:
                raise DataError(f"{at} stands before with another text; make ids unique.")
            self._merge("documents that stand twice")
            return doc_id
        seen[doc_id] = content
        self.counts[corpus] += 1
        metadata = json.dumps(document.metadata, ensure_ascii=False, sort_keys=True) if document.metadata else "{}"
        self._rows.append((corpus, doc_id, document.title, document.text, metadata, document.locale))
        self._characters += len(document.text) + len(document.title) + len(metadata)
        if len(self._rows) == _BATCH_ROWS or self._characters > _BATCH_CHARACTERS:
            self._end_batch()
        return doc_id

    def ids(self, corpus: str) -> dict[str, int]:
        """The ids of a corpus, as the keys of a mapping."""
        return self._seen.get(corpus, {})

    @property
    def num_kept(self) -> int:
        """Documents of the stream that are passed over."""
        return self._to_pass

    def _take_over(self) -> int:
        """Writes the kept row groups; the number of documents that they cover."""
        for table, covered in self._kept.read() if self._kept is not None else ():
            self._writer.write_table(table, row_group_size=len(table))
            columns = (table.column(name).to_pylist() for name in ("corpus", "doc_id", "title", "text"))
            for corpus, doc_id, title, text in zip(*columns, strict=True):
                self._seen.setdefault(corpus, {})[doc_id] = hash((title, text))
                self.counts[corpus] += 1
            self._covered = covered
        self._before_batch = deepcopy(self._covered)
        for what, times in self._covered.merged.items():
            self._report.merge(what, times)
        return self._covered.documents

    def _merge(self, what: str) -> None:
        self._report.merge(what)
        self._covered.merged[what] += 1

    def _end_batch(self) -> None:
        if not self._rows:
            return
        columns = [pa.array(column, pa.string()) for column in zip(*self._rows, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, schema=CORPUS_SCHEMA)
        self._rows, self._characters = [], 0
        if self._bytes + batch.nbytes > _FLUSH_BYTES:
            self._end_row_group()
        self._batches.append(batch)
        self._bytes += batch.nbytes
        self._before_batch = deepcopy(self._covered)

    def _end_row_group(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._batches, self._bytes = [], 0
            self._writer.write_table(table, row_group_size=len(table))
            if self._kept is not None:
                self._kept.keep(table, self._before_batch)
