"""Conditions on the metadata of documents, applied exactly and before anything is ranked.

A condition is what JSON can say: `{"kind": "wiki"}` (equal), `{"kind": ["wiki", "mail"]}` (one of), `{"year": {"gte": 2020,
"lt": 2024}}` (a range, with `gt`, `gte`, `lt`, `lte`); several fields must all hold. Texts, numbers and truth values can be
asked for; a list in the metadata meets a condition where one of its items does. A document without the field meets none.
Texts are ordered by code points, so that ISO dates work as ranges. Nothing is converted: `"5"` is not 5.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_cluster.errors import IndexFormatError, SearchRequestError
from rl_cluster.retrieval.arrays import load_array
from rl_cluster.retrieval.string_table import StringTable

Filters = Mapping[str, Any]

_RANGES = ("gt", "gte", "lt", "lte")
_EXACT = 2**53  # float64 holds every whole number up to here
_KINDS = {"text": "texts", "number": "numbers of at most 2^53", "truth": "truth values"}


class FilterIndex:
    """For each field and kind of value: the values in ascending order and the documents that have each."""

    def __init__(self, num_documents: int, columns: dict[str, dict[str, _Column]], refused: dict[str, str]):
        """`refused`: fields that cannot be asked for, and why."""
        self._num_documents = num_documents
        self._columns = columns
        self._refused = refused

    @property
    def fields(self) -> list[str]:
        """The fields that can be asked for."""
        return sorted(self._columns)

    @classmethod
    def build(cls, metadata: Iterable[Mapping[str, Any]]) -> FilterIndex:
        """Indexes one mapping per document, in the order of positions."""
        found: dict[str, dict[str, dict[Any, list[int]]]] = {}
        refused: dict[str, str] = {}
        size = 0
        for position, entry in enumerate(metadata):
            size = position + 1
            for field, value in entry.items():
                for item in value if isinstance(value, list) else [value]:
                    kind = _kind(item)
                    if kind in _KINDS:
                        documents = found.setdefault(field, {}).setdefault(kind, {}).setdefault(item, [])
                        if not documents or documents[-1] != position:
                            documents.append(position)
                    elif kind:
                        refused.setdefault(field, kind)
        columns = {
            field: {kind: _Column.of(kind, values) for kind, values in kinds.items()}
            for field, kinds in found.items()
            if field not in refused
        }
        return cls(size, columns, refused)

    def cut(self, start: int, stop: int) -> FilterIndex:
        """The documents at positions `start` to `stop`, which become 0 and so on; it takes and refuses the same conditions."""
        columns = {
            field: {kind: column.cut(start, stop) for kind, column in kinds.items()}
            for field, kinds in self._columns.items()
        }
        return FilterIndex(stop - start, columns, self._refused)

    def allowed(self, filters: Filters) -> np.ndarray:
        """bool `[documents]`: true where all conditions hold. Raises SearchRequestError for a wrong condition."""
        mask = np.ones(self._num_documents, bool)
        for field, condition in filters.items():
            mask &= self._meets(field, condition)
        return mask

    def _meets(self, field: str, condition: Any) -> np.ndarray:
        if field in self._refused:
            raise SearchRequestError(f"The field {field!r} cannot be asked for: it has {self._refused[field]}.")
        if field not in self._columns:
            known = ", ".join(self.fields) or "none"
            raise SearchRequestError(f"There is no field {field!r} to filter by; the fields are: {known}.")
        mask = np.zeros(self._num_documents, bool)
        if isinstance(condition, Mapping):
            unknown = [key for key in condition if key not in _RANGES]
            if unknown or not condition:
                raise SearchRequestError(
                    f"The filter on {field!r} has the bounds {list(condition)}; use {', '.join(_RANGES)}."
                )
            column = self._column(field, list(condition.values()))
            mask[column.between(condition)] = True
            return mask
        values = list(condition) if isinstance(condition, (list, tuple, set, frozenset)) else [condition]
        for value in values:
            mask[self._column(field, [value]).equal(value)] = True
        return mask

    def _column(self, field: str, values: list[Any]) -> _Column:
        kinds = {_kind(value) for value in values}
        columns = self._columns[field]
        if len(kinds) != 1 or (kind := kinds.pop()) not in columns:
            held = " and ".join(_KINDS[known] for known in sorted(columns))
            shown = ", ".join(repr(value)[:80] for value in values)
            raise SearchRequestError(f"The filter on {field!r} has the value {shown}, but the field holds {held}.")
        return columns[kind]

    def save(self, folder: Path) -> None:
        """Writes the index into `folder`, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        names = []
        for field in self.fields:
            for kind, column in self._columns[field].items():
                column.save(folder, f"{len(names)}")
                names.append([field, kind])
        state = {"num_documents": self._num_documents, "columns": names, "refused": self._refused}
        (folder / "filters.json").write_text(json.dumps(state), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> FilterIndex:
        """Opens a folder memory-mapped. Raises IndexFormatError where it is missing or damaged."""
        try:
            state = json.loads((folder / "filters.json").read_text(encoding="utf-8"))
            columns: dict[str, dict[str, _Column]] = {}
            for number, (field, kind) in enumerate(state["columns"]):
                columns.setdefault(field, {})[kind] = _Column.load(folder, f"{number}", kind)
            return cls(state["num_documents"], columns, state["refused"])
        except IndexFormatError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IndexFormatError(f"{folder}: it cannot be read ({error}); delete it and build again.") from error


class _Column:
    """The distinct values of one kind in one field, ascending, each with the documents that have it."""

    def __init__(self, values: StringTable | np.ndarray, starts: np.ndarray, documents: np.ndarray):
        """`starts`: int64 `[values + 1]`; `documents`: int32, those of value i at `starts[i]` to `starts[i + 1]`."""
        self._values = values
        self._starts = starts
        self._documents = documents

    @classmethod
    def of(cls, kind: str, found: dict[Any, list[int]]) -> _Column:
        values = sorted(found)
        starts = np.zeros(len(values) + 1, np.int64)
        np.cumsum([len(found[value]) for value in values], out=starts[1:])
        documents = np.array([position for value in values for position in found[value]], np.int32)
        return cls(StringTable.of(values) if kind == "text" else np.array(values, np.float64), starts, documents)

    def cut(self, start: int, stop: int) -> _Column:
        inside = (self._documents >= start) & (self._documents < stop)
        before = np.zeros(len(inside) + 1, np.int64)
        np.cumsum(inside, out=before[1:])
        return _Column(self._values, before[self._starts], self._documents[inside] - np.int32(start))

    def equal(self, value: Any) -> np.ndarray:
        """Positions of the documents with this value."""
        return self._documents[self._starts[self._rank(value, False)] : self._starts[self._rank(value, True)]]

    def between(self, bounds: Mapping[str, Any]) -> np.ndarray:
        """Positions of the documents with a value within all bounds; one may stand there more than once."""
        low, high = 0, len(self._values)
        for key, value in bounds.items():
            if key in ("gt", "gte"):
                low = max(low, self._rank(value, key == "gt"))
            else:
                high = min(high, self._rank(value, key == "lte"))
        return self._documents[self._starts[low] : self._starts[max(low, high)]]

    def _rank(self, value: Any, after: bool) -> int:
        if isinstance(self._values, StringTable):
            return self._values.bisect(value, after)
        return int(np.searchsorted(self._values, float(value), side="right" if after else "left"))

    def save(self, folder: Path, name: str) -> None:
        if isinstance(self._values, StringTable):
            self._values.save(folder, name)
        else:
            np.save(folder / f"{name}.values.npy", self._values)
        np.save(folder / f"{name}.starts.npy", self._starts)
        np.save(folder / f"{name}.documents.npy", self._documents)

    @classmethod
    def load(cls, folder: Path, name: str, kind: str) -> _Column:
        values = (
            StringTable.load(folder, name)
            if kind == "text"
            else load_array(folder / f"{name}.values.npy", np.float64, 1)
        )
        starts = load_array(folder / f"{name}.starts.npy", np.int64, 1)
        return cls(values, starts, load_array(folder / f"{name}.documents.npy", np.int32, 1))


def _kind(value: Any) -> str:
    """`text`, `number` or `truth`; `""` for what counts as missing; else what it is, for a message."""
    if value is None:
        return ""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int):
        return "number" if abs(value) <= _EXACT else "whole numbers over 2^53"
    if isinstance(value, float):
        return "" if math.isnan(value) else "number"
    return "objects inside objects or lists"
