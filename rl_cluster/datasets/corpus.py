"""A collection of documents in memory and on disk.

Parquet files have the columns `corpus, doc_id, title, text, metadata, locale` (metadata a JSON string; locale that of the text,
may be empty or left out); JSONL files have one object a line with `doc_id` (or `id`, `_id`), `title`, `text` and optionally
`metadata` (an object) and `locale`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from rl_cluster.datasets.task import Document
from rl_cluster.datasets.text import ID_RULE, id_problem, limited
from rl_cluster.errors import ConfigError, DataError

CORPUS_SCHEMA = pa.schema(
    [
        ("corpus", pa.string()),
        ("doc_id", pa.string()),
        ("title", pa.string()),
        ("text", pa.string()),
        ("metadata", pa.string()),
        ("locale", pa.string()),
    ]
)
_BATCH_ROWS = 4096
_BATCH_CHARACTERS = 1 << 28
"""Of at most four bytes each: an Arrow array of strings holds 2 GiB."""
_CheckedRow = tuple[str, str, str, str, str]
_SURROGATE = re.compile("[\ud800-\udfff]")
_T = TypeVar("_T")
_COLUMNS = ("doc_id", "title", "text", "metadata")


class Corpus:
    """A named list of documents, kept as Arrow columns; positions run from 0 to `len(corpus) - 1`."""

    def __init__(self, name: str, table: pa.Table):
        self.name = name
        self._columns = [table.column(column) for column in _COLUMNS]
        self._locales = table.column("locale")
        self._size = table.num_rows

    @classmethod
    def from_documents(cls, name: str, documents: Iterable[Document]) -> Corpus:
        """Raises DataError for an empty collection, a missing or repeated id, and a text that is no string."""
        checked = _checked(_rows_of(documents), f"corpus {name!r}", "document")
        batches = list(_record_batches(name, checked))
        if not batches:
            raise DataError(f"The corpus {name!r} has no document; give it at least one.")
        return cls(name, pa.Table.from_batches(batches))

    def __len__(self) -> int:
        return self._size

    def __contains__(self, doc_id: object) -> bool:
        return doc_id in self._positions

    def __iter__(self) -> Iterator[Document]:
        return (self.at(position) for position in range(len(self)))

    @cached_property
    def doc_ids(self) -> list[str]:
        """All ids in the order of their positions."""
        return self._columns[0].to_pylist()

    @cached_property
    def locales(self) -> list[str]:
        """All locales that documents say they are in, in ascending order."""
        return sorted(filter(None, self._locales.unique().to_pylist()))

    def position(self, doc_id: str) -> int | None:
        """The position of a document, or None where the corpus has no such id."""
        return self._positions.get(doc_id)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {doc_id: position for position, doc_id in enumerate(self.doc_ids)}

    def at(self, position: int) -> Document:
        """The document at a position in `[0, len(self))`."""
        doc_id, title, text, metadata = (column[position].as_py() for column in self._columns)
        return Document(doc_id, title, text, json.loads(metadata), self._locales[position].as_py())

    def get(self, doc_id: str) -> Document | None:
        """The document with this id, or None."""
        position = self.position(doc_id)
        return None if position is None else self.at(position)

    def texts(self, start: int = 0, stop: int | None = None) -> list[tuple[str, str]]:
        """(title, text) of the documents at positions `start` to `stop`, the latter left out."""
        stop = len(self) if stop is None else min(stop, len(self))
        size = max(stop - start, 0)
        titles, texts = (self._columns[i].slice(start, size).to_pylist() for i in (1, 2))
        return list(zip(titles, texts, strict=True))

    @property
    def num_bytes(self) -> int:
        """The memory that the documents take."""
        return sum(column.nbytes for column in (*self._columns, self._locales))

    def digest(self) -> str:
        """sha256 (hex) over name and documents in their order; not over locales, which only choose the analyser."""
        digest = hashlib.sha256(self.name.encode())
        for start in range(0, len(self), _BATCH_ROWS):
            for column in self._columns:
                values = pa.array(column.slice(start, _BATCH_ROWS).to_pylist(), pa.string())
                # Lengths and bytes of a block of rows: the same however the rows are spread over Arrow's chunks.
                for part in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
                    for buffer in part.buffers()[1:]:
                        digest.update(buffer)
        return digest.hexdigest()


def write_corpus(path: str | Path, corpus_name: str, documents: Iterable[Document]) -> int:
    """Streams documents into a Parquet file, which appears whole or not at all. Returns their number.

    Raises DataError as `Corpus.from_documents` does.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    count = 0
    try:
        with pq.ParquetWriter(partial, CORPUS_SCHEMA, compression="zstd") as writer:
            for batch in _record_batches(corpus_name, _checked(_rows_of(documents), str(path), "document")):
                writer.write_batch(batch)
                count += batch.num_rows
        if count == 0:
            raise DataError(f"{path}: there is no document to write; give the corpus at least one.")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def read_corpus(path: str | Path, name: str | None = None) -> Corpus:
    """Reads a `.parquet` or `.jsonl` file.

    `name` chooses among several corpora of a Parquet file, and names the corpus of a JSONL file (default: the file's
    stem). Raises DataError where the file is missing, empty or malformed.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; correct the path of the corpus.")
    if path.suffix == ".parquet":
        name, rows = _parquet_rows(path, name)
    elif path.suffix in (".jsonl", ".json"):
        name, rows = name or path.stem, _jsonl_rows(path)
    else:
        raise DataError(f"{path}: the ending {path.suffix!r} is unknown; use .parquet or .jsonl.")
    batches = list(_record_batches(name, _checked(rows, str(path), "row")))
    if not batches:
        raise DataError(f"{path}: corpus {name!r} has no document; give it at least one.")
    return Corpus(name, pa.Table.from_batches(batches))


def corpus_names(path: str | Path) -> list[str]:
    """The corpora of a `.parquet` file in ascending order; of other files, and where no row names one, none.

    Raises DataError where the file is missing or no Parquet file, and where the first row of another is no object.
    """
    path = Path(path)
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {what}; give the path of a corpus file.")
    if path.suffix == ".parquet":
        return _names(path, _parquet_file(path))
    next(_jsonl_rows(path), None)
    return []


_Row = tuple[int, Any, Any, Any, Any, Any]
"""Number from 1, doc_id (a whole number counts as its digits), title, text, metadata (JSON string or object), locale."""


def _rows_of(documents: Iterable[Document]) -> Iterator[_Row]:
    for number, doc in enumerate(documents, start=1):
        yield number, doc.doc_id, doc.title, doc.text, doc.metadata, doc.locale


def _jsonl_rows(path: Path) -> Iterator[_Row]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: row {number} is not UTF-8 ({error.reason}); save it as UTF-8.") from error
            except (ValueError, RecursionError) as error:
                said = getattr(error, "msg", str(error)).removesuffix(" at")
                raise DataError(f"{path}: row {number} is not JSON ({said}); write one object a line.") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}: row {number} is a {type(row).__name__}; write one JSON object a line.")
            doc_id = next((row[key] for key in ("doc_id", "id", "_id") if row.get(key) is not None), None)
            metadata, locale = row.get("metadata") or {}, row.get("locale") or ""
            yield number, doc_id, row.get("title", ""), row.get("text"), metadata, locale


def _parquet_rows(path: Path, name: str | None) -> tuple[str, Iterator[_Row]]:
    file = _parquet_file(path)
    present = set(file.schema_arrow.names)
    missing = [column for column in ("doc_id", "text") if column not in present]
    if missing:
        raise DataError(
            f"{path}: the column {missing[0]!r} is missing; the columns are {', '.join(CORPUS_SCHEMA.names)}."
        )
    names = _names(path, file)
    if name is None and len(names) > 1:
        raise DataError(f"{path}: it holds the corpora {', '.join(names)}; name the one to read.")
    if name is not None and names and name not in names:
        raise DataError(f"{path}: it has no corpus {name!r}; choose one of: {', '.join(names)}.")
    name = name or (names[0] if names else path.stem)
    return name, _parquet_row_iterator(path, file, present, name)


def _parquet_file(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: it is no Parquet file ({error}); write it again.") from error


def _names(path: Path, file: pq.ParquetFile) -> list[str]:
    """The corpora that rows of a file name, in ascending order."""
    if "corpus" not in file.schema_arrow.names:
        return []
    values = pq.read_table(path, columns=["corpus"]).column("corpus")
    return sorted(value for value in values.unique().to_pylist() if value is not None)


def _parquet_row_iterator(path: Path, file: pq.ParquetFile, present: set[str], name: str) -> Iterator[_Row]:
    number = 0
    wanted = [column for column in CORPUS_SCHEMA.names if column in present]
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: a text after row {number} is not UTF-8 ({error.reason}); write it as UTF-8."
            ) from error
        for row in rows:
            number += 1
            if row.get("corpus") in (None, name):
                title = row.get("title")
                title, metadata, locale = "" if title is None else title, row.get("metadata"), row.get("locale")
                yield number, row["doc_id"], title, row["text"], metadata or "{}", locale or ""


def _checked(rows: Iterable[_Row], where: str, unit: str) -> Iterator[_CheckedRow]:
    """Yields (doc_id, title, text, metadata as JSON, locale); raises DataError at the first row that is wrong."""
    seen: dict[str, int] = {}
    for number, doc_id, title, text, metadata, locale in rows:
        at = f"{where}: {unit} {number}"
        if doc_id is None or doc_id == "":
            raise DataError(f"{at} has no doc_id; give each document a unique one.")
        if isinstance(doc_id, int) and not isinstance(doc_id, bool):
            doc_id = str(doc_id)
        if not isinstance(doc_id, str):
            raise DataError(f"{at} has the doc_id {doc_id!r}, a {type(doc_id).__name__}; write ids as strings.")
        problem = id_problem(doc_id)
        if problem:
            raise DataError(f"{at} has the doc_id {limited(repr(doc_id), 80)}, with {problem}; {ID_RULE}.")
        if doc_id in seen:
            raise DataError(f"{at} repeats the doc_id {doc_id!r} of {unit} {seen[doc_id]}; make ids unique.")
        seen[doc_id] = number
        for label, value in (("title", title), ("text", text), ("locale", locale)):
            if not isinstance(value, str):
                kind = type(value).__name__
                raise DataError(f"{at} ({doc_id!r}) has the {label} {value!r}, a {kind}; write it as a string.")
        attributes = _metadata_json(metadata, f"{at} ({doc_id!r})")
        fields = {"doc_id": doc_id, "title": title, "text": text, "metadata": attributes, "locale": locale}
        for label, value in fields.items():
            if not value.isascii() and (found := _SURROGATE.search(value)):
                raise DataError(
                    f"{at} ({doc_id!r}) has half a character (U+{ord(found.group()):04X}) in its {label}; repair its encoding."
                )
        yield doc_id, title, text, attributes, locale


def _metadata_json(metadata: Any, at: str) -> str:
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError) as error:
            said = getattr(error, "msg", str(error))
            raise DataError(f"{at} has metadata that is not JSON ({said}); write a JSON object.") from error
    if not isinstance(metadata, dict):
        raise DataError(f"{at} has the metadata {metadata!r}; write a JSON object.")
    try:
        return json.dumps(metadata, ensure_ascii=False, sort_keys=True)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{at} has metadata that cannot be written as JSON ({error}); write a plainer object."
        ) from error


def _batched(items: Iterable[_T], size: int) -> Iterator[tuple[_T, ...]]:
    iterator = iter(items)
    while batch := tuple(islice(iterator, size)):
        yield batch


def _record_batches(name: str, rows: Iterable[_CheckedRow]) -> Iterator[pa.RecordBatch]:
    """Blocks of at most `_BATCH_ROWS` rows and of as many characters as one Arrow array can hold."""
    for block in _batched(rows, _BATCH_ROWS):
        start, held = 0, 0
        for place, row in enumerate(block):
            size = sum(map(len, row))
            if held + size > _BATCH_CHARACTERS and place > start:
                yield _record_batch(name, block[start:place])
                start, held = place, 0
            held += size
        yield _record_batch(name, block[start:])


def _record_batch(name: str, rows: tuple[_CheckedRow, ...]) -> pa.RecordBatch:
    columns = [pa.array([name] * len(rows), pa.string())]
    columns += [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=CORPUS_SCHEMA)


def fields_without_documents(documents: Iterable[Document], fields: set[str]) -> set[str]:
    """Those of `fields` that stand in no document's metadata; reads only as many documents as that takes."""
    unknown = set(fields)
    for document in documents if unknown else ():
        unknown -= document.metadata.keys()
        if not unknown:
            break
    return unknown


def check_fields_known(setting: str, fields: Sequence[str], unknown: set[str], where: str) -> None:
    """Raises ConfigError for the first of `fields`, the value of `setting`, that is `unknown` to the documents of `where`.

    Agents would be offered it, and every use would count as their malformed call.
    """
    field = next((field for field in fields if field in unknown), None)
    if field is not None:
        raise ConfigError(
            f"{setting}={list(fields)}: no document of {where} has {field!r} in its metadata; leave it out."
        )
