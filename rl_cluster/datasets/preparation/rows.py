"""Rows of published files: read one by one, with errors that name file, row, column, value and mend."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from rl_cluster.datasets.preparation.source import READ_ERRORS, Source, SourceFile, Stream
from rl_cluster.errors import DataError

_BATCH_ROWS = 512
_WATCH_EVERY = 2000
_CHUNK_BYTES = 1 << 22
_SHOWN = 80
_NONE = object()
csv.field_size_limit(1 << 28)


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `number` counts from 1, headers left out. `secret` rows never show their values."""

    file: str
    number: int
    values: Mapping[str, Any]
    secret: bool = False

    def wrong(self, column: str, problem: str, mend: str) -> DataError:
        """The error to raise about a column of this row."""
        value = "its value" if self.secret else _shown(self.values.get(column))
        return DataError(f"{self.file}: row {self.number}: column {column!r}: {value} {problem}; {mend}.")

    def raw(self, column: str) -> Any:
        """The value as it is. Raises DataError where the column is missing."""
        value = self.values.get(column, _NONE)
        if value is _NONE:
            there = ", ".join(map(repr, list(self.values)[:12]))
            raise DataError(
                f"{self.file}: row {self.number} lacks the column {column!r} (it has {there}); correct the file."
            )
        return value

    def text(self, column: str, default: str | None = None) -> str:
        """A string, possibly empty; a missing or null value becomes `default`, where one is given."""
        value = self.values.get(column) if default is not None else self.raw(column)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(column, "is no text", "write a string")
        return value

    def identifier(self, column: str) -> str:
        """An id as a string, also where it is written as a number; never empty."""
        value = self.raw(column)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) or not value:
            raise self.wrong(column, "is no id", "write a string that is not empty")
        return value

    def strings(self, column: str) -> list[str]:
        """A list of strings; null is the empty list, and numbers become strings."""
        value = self.raw(column)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(column, "is no list", "write a list of strings")
        if not all(isinstance(item, str | int) and not isinstance(item, bool) for item in value):
            raise self.wrong(column, "holds something else than strings", "write a list of strings")
        return [str(item) for item in value]

    def mapping(self, column: str) -> dict[str, Any]:
        """An object; a missing column and null are the empty one."""
        value = self.values.get(column)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(column, "is no object", "write a JSON object")
        return value

    def rows(self, column: str) -> Iterator[Row]:
        """The objects of a list as rows of their own, with this row's number."""
        value = self.raw(column)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(column, "is no list of objects", "write a list of objects")
        return (Row(self.file, self.number, item, self.secret) for item in value)

    def chosen(self, column: str, known: Mapping[Any, Any], of: str = "the published set") -> Any:
        """What `known`, which is `of`, holds for the value. Raises DataError for a value outside of it."""
        value = self.raw(column)
        if not isinstance(value, str) or value not in known:
            raise self.wrong(column, f"is outside {of}", f"use one of {', '.join(map(repr, known))}")
        return known[value]


def read_rows(source: Source, file: SourceFile, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a `.parquet`, `.jsonl`, `.tsv` or `.csv` file, also compressed.

    All of `columns` must be there; of Parquet files only `columns` and `optional` are read. Raises DataError for a file that
    is malformed, cut short, or lacks a column.
    """
    name = file.plain_name
    if name.endswith(".parquet"):
        return _parquet(source, file, columns, optional)
    if name.endswith((".tsv", ".csv")):
        return _delimited(source, file, columns)
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return _json_lines(source, file, columns)
    raise DataError(
        f"{file.name}: the ending is unknown; use .parquet, .jsonl, .tsv or .csv, possibly with .gz or .zst."
    )


def read_all(
    source: Source, files: Iterable[SourceFile], columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[Row]:
    """The rows of several files, one after the other."""
    for file in files:
        yield from read_rows(source, file, columns, optional)


def read_text(source: Source, file: SourceFile) -> str:
    """A whole small file as text. Raises DataError where it is no UTF-8 or cannot be read."""
    try:
        source.place = (file.name, 1)
        with source.open(file).data as data:
            return data.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _no_utf8(file.name, f"byte {error.start}", error) from error
    except READ_ERRORS as error:
        raise _cut_short(file.name, 0, error) from error


def read_json(source: Source, file: SourceFile) -> Any:
    """A whole JSON file. Raises DataError where it is malformed."""
    try:
        return msgspec.json.decode(read_text(source, file))
    except msgspec.DecodeError as error:
        raise DataError(f"{file.name}: it is no whole JSON ({error}); download it again.") from error


def read_lines(source: Source, file: SourceFile) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line that is not blank. Raises DataError where the file is cut short."""
    stream = source.open(file)
    number = 0
    try:
        with stream.data as data:
            for number, line in enumerate(data, start=1):
                if number % _WATCH_EVERY == 0:
                    source.watch(file.name, stream.position(), stream.size)
                if not line.isspace():
                    yield number, line
    except READ_ERRORS as error:
        raise _cut_short(file.name, number, error) from error
    source.watch(file.name, stream.size, stream.size)


def column_names(source: Source, file: SourceFile) -> list[str]:
    """The columns of a Parquet file."""
    with _open_parquet(source, file) as parquet:
        return parquet.schema_arrow.names


def _json_lines(source: Source, file: SourceFile, columns: Sequence[str]) -> Iterator[Row]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, line in read_lines(source, file):
        try:
            values = decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
        except msgspec.DecodeError as error:
            raise DataError(f"{file.name}: row {number} is no JSON object ({error}); {_hint(line)}.") from error
        except UnicodeDecodeError as error:
            raise _no_utf8(file.name, f"row {number}", error) from error
        for column in columns:
            if column not in values:
                Row(file.name, number, values).raw(column)
        source.place = (file.name, number)
        yield Row(file.name, number, values)


def _delimited(source: Source, file: SourceFile, columns: Sequence[str]) -> Iterator[Row]:
    """Files named `.csv` may be separated by tabs: the header decides."""
    stream = source.open(file)
    number = 0
    try:
        with io.TextIOWrapper(stream.data, encoding="utf-8-sig", newline="") as lines:
            header_line = lines.readline()
            delimiter = "\t" if "\t" in header_line else ","
            header = next(csv.reader([header_line], delimiter=delimiter, strict=True), [])
            _require(file.name, header, columns)
            for number, cells in enumerate(csv.reader(lines, delimiter=delimiter, strict=True), start=1):
                if number % _WATCH_EVERY == 0:
                    source.watch(file.name, stream.position(), stream.size)
                if len(cells) != len(header):
                    if not cells:
                        continue
                    raise DataError(
                        f"{file.name}: row {number} has {len(cells)} cells, the header {len(header)}; mend the row, or download the "
                        "file again if it was cut."
                    )
                source.place = (file.name, number)
                yield Row(file.name, number, dict(zip(header, cells, strict=True)))
    except UnicodeDecodeError as error:
        raise _no_utf8(file.name, f"about row {number + 1}", error) from error
    except csv.Error as error:
        raise DataError(
            f"{file.name}: row {number + 1} cannot be read ({error}); mend its quotes, or download the file again if it was cut."
        ) from error
    except READ_ERRORS as error:
        raise _cut_short(file.name, number, error) from error
    source.watch(file.name, stream.size, stream.size)


def _parquet(source: Source, file: SourceFile, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    with _open_parquet(source, file) as parquet:
        there = parquet.schema_arrow.names
        _require(file.name, there, columns)
        wanted = [name for name in there if name in {*columns, *optional}]
        number, total = 0, parquet.metadata.num_rows
        try:
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                lists = [column.to_pylist() for column in batch.columns]
                for values in zip(*lists, strict=True):
                    number += 1
                    source.place = (file.name, number)
                    yield Row(file.name, number, dict(zip(wanted, values, strict=True)))
                source.watch(file.name, number * file.size // max(total, 1), file.size)
        except (*READ_ERRORS, UnicodeDecodeError) as error:
            raise _cut_short(file.name, number, error) from error


@contextmanager
def _open_parquet(source: Source, file: SourceFile) -> Iterator[pq.ParquetFile]:
    with _unpacked(source, file) as path:
        try:
            # Without pre-buffering a row group is read page by page: published ones are larger than memory.
            parquet = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
        except READ_ERRORS as error:
            raise DataError(f"{file.name}: it is no whole Parquet file ({error}); download it again.") from error
        with parquet:
            yield parquet


@contextmanager
def _unpacked(source: Source, file: SourceFile) -> Iterator[Path]:
    """Where the plain bytes lie: Parquet is read from its end, so what is packed goes to a temporary file, gone afterwards."""
    stream = source.open(file)
    if file.member is None and file.name == file.plain_name:
        stream.data.close()
        yield file.path
        return
    with tempfile.TemporaryDirectory(prefix="rl_cluster-") as folder:
        path = Path(folder, "unpacked.parquet")
        try:
            with stream.data, path.open("wb") as out:
                for chunk in _chunks(source, file, stream):
                    out.write(chunk)
        except OSError as error:
            raise DataError(
                f"{file.name}: it cannot be unpacked into {tempfile.gettempdir()} ({error}); make room there or set TMPDIR to another "
                "folder."
            ) from error
        yield path


def _chunks(source: Source, file: SourceFile, stream: Stream) -> Iterator[bytes]:
    try:
        while chunk := stream.data.read(_CHUNK_BYTES):
            source.watch(f"unpacking {file.name}", stream.position(), stream.size)
            yield chunk
    except READ_ERRORS as error:
        raise DataError(
            f"{file.name}: it cannot be unpacked ({error}); it may be cut short: download it again."
        ) from error


def _require(file: str, there: Sequence[str], columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in there]
    if missing:
        listed = ", ".join(map(repr, there))
        raise DataError(f"{file}: the column {missing[0]!r} is missing (it has {listed}); is it the published file?")


def _cut_short(file: str, number: int, error: Exception) -> DataError:
    return DataError(f"{file}: it cannot be read past row {number} ({error}); it may be cut short: download it again.")


def _no_utf8(file: str, place: str, error: UnicodeDecodeError) -> DataError:
    return DataError(f"{file}: {place} is no UTF-8 ({error.reason}); save the file as UTF-8 or download it again.")


def _hint(line: bytes) -> str:
    """What to do about a line that is no JSON object."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return "save the file as UTF-8"
    if not line.endswith(b"\n") and not line.startswith(b"["):
        return "the last line is cut: download it again"
    if re.search(rb":\s*-?(NaN|Infinity)\b", line):
        return "JSON has no NaN and no infinity: give a number"
    return "write one JSON object a line"


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
