"""Tasks as a Parquet table.

Columns: `task_id, query_id, prompt, gains, excluded, answers, corpus, split, locale, metadata`; `gains` is a JSON object
{doc_id: gain from 0 to MAX_GAIN}, `excluded` and `answers` are JSON lists of strings, `metadata` is a JSON object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl_cluster.datasets.task import MAX_GAIN, Task, is_gain
from rl_cluster.errors import DataError

TASK_COLUMNS = (
    "task_id",
    "query_id",
    "prompt",
    "gains",
    "excluded",
    "answers",
    "corpus",
    "split",
    "locale",
    "metadata",
)
MISSING = "missing_from_corpus"
"""Metadata: gold ids that the corpus is known to lack; they stay in the ideal ranking."""
_REQUIRED = ("task_id", "prompt", "gains", "corpus", "split")


def write_tasks(path: str | Path, tasks: Mapping[str, Iterable[Task]]) -> int:
    """Writes the tasks of all splits into one file, which appears whole or not at all; returns their number."""
    rows: dict[str, list[str]] = {column: [] for column in TASK_COLUMNS}
    for split, found in tasks.items():
        for task in found:
            values = {
                "task_id": task.task_id,
                "query_id": str(task.metadata.get("query_id", task.task_id)),
                "prompt": task.prompt,
                "gains": _dumps(task.gains),
                "excluded": _dumps(list(task.excluded)),
                "answers": _dumps(list(task.answers)),
                "corpus": task.corpus,
                "split": split,
                "locale": task.locale,
                "metadata": _dumps(task.metadata),
            }
            for column in TASK_COLUMNS:
                rows[column].append(values[column])
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        table = pa.table({column: pa.array(values, pa.string()) for column, values in rows.items()})
        pq.write_table(table, partial, compression="zstd")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return len(rows["task_id"])


def read_tasks(path: str | Path, split: str, dataset: str = "") -> list[Task]:
    """The tasks of one split in the order of the file.

    Raises DataError where the file is missing or malformed, a task id stands twice (in any split), or the split is empty.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; correct the path of the tasks.")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: it is no Parquet file ({error}); write it again.") from error
    missing = [column for column in _REQUIRED if column not in table.column_names]
    if missing:
        raise DataError(f"{path}: the column {missing[0]!r} is missing; the columns are {', '.join(TASK_COLUMNS)}.")
    tasks, seen, splits = [], {}, set()
    for number, row in enumerate(_rows(table, path), start=1):
        task_id = row["task_id"]
        if not isinstance(task_id, str) or not task_id:
            raise DataError(f"{path}: row {number} has the task_id {task_id!r}; give each task a unique string.")
        if task_id in seen:
            raise DataError(
                f"{path}: row {number} repeats the task_id {task_id!r} of row {seen[task_id]}; make ids unique."
            )
        seen[task_id] = number
        splits.add(str(row["split"]))
        if row["split"] == split:
            tasks.append(_task(row, f"{path}: row {number} ({task_id!r})", dataset or path.parent.name))
    if not tasks:
        present = ", ".join(sorted(splits)) or "none"
        raise DataError(
            f"{path}: the split {split!r} has no task; write some for it, or prepare the data with a larger "
            f"share of it (present: {present})."
        )
    return tasks


def check_tasks(tasks: Iterable[Task], corpus_ids: Container[str], corpus: str | None = None) -> None:
    """Raises DataError at the first task that cannot be scored over a corpus.

    That is: an id that stands twice, another corpus than `corpus` (where given), a gain for a document that the corpus
    lacks (unless the task says so under `missing_from_corpus`) or the task excludes, a gain that is no number from 0 to MAX_GAIN,
    or no gain above 0.
    """
    seen: set[str] = set()
    for task in tasks:
        at = f"task {task.task_id!r}"
        if task.task_id in seen:
            raise DataError(f"{at} stands twice; make task ids unique.")
        seen.add(task.task_id)
        if corpus is not None and task.corpus != corpus:
            raise DataError(f"{at} asks the corpus {task.corpus!r}, but {corpus!r} is loaded; correct its corpus.")
        for doc_id, gain in task.gains.items():
            if not is_gain(gain):
                raise DataError(f"{at} has the gain {gain!r:.40} for {doc_id!r}; give numbers from 0 to {MAX_GAIN:g}.")
            if doc_id not in corpus_ids and doc_id not in task.metadata.get(MISSING, ()):
                raise DataError(
                    f"{at} has a gain for the document {doc_id!r}, which the corpus lacks; remove or correct it."
                )
            if gain > 0 and doc_id in task.excluded:
                raise DataError(f"{at} has a gain for {doc_id!r} and excludes it; do one or the other.")
        if not any(gain > 0 for gain in task.gains.values()):
            raise DataError(f"{at} has no document with a gain above 0; add one or remove the task.")


def _rows(table: pa.Table, path: Path) -> list[dict[str, Any]]:
    """The rows of a table whose columns are all text. Raises DataError for others."""
    for column in (column for column in TASK_COLUMNS if column in table.column_names):
        kind = table.schema.field(column).type
        values = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_text(values) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)):
            raise DataError(f"{path}: the column {column!r} holds {kind}; write it as text.")
    try:
        return table.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: a text in it is not UTF-8 ({error}); write it again in UTF-8.") from error


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _task(row: Mapping[str, Any], at: str, dataset: str) -> Task:
    gains = _json(row, "gains", dict, at)
    for doc_id, gain in gains.items():
        if not is_gain(gain):
            raise DataError(f"{at} has the gain {gain!r:.40} for {doc_id!r}; give numbers from 0 to {MAX_GAIN:g}.")
    for column in ("prompt", "corpus"):
        if not isinstance(row[column], str) or not row[column].strip():
            raise DataError(f"{at} has the {column} {row[column]!r}; write a text.")
    metadata = _json(row, "metadata", dict, at)
    if row.get("query_id"):
        metadata.setdefault("query_id", row["query_id"])
    return Task(
        task_id=row["task_id"],
        prompt=row["prompt"],
        corpus=row["corpus"],
        gains={doc_id: float(gain) for doc_id, gain in gains.items()},
        excluded=_strings(row, "excluded", at),
        answers=_strings(row, "answers", at),
        locale=row.get("locale") or "en",
        dataset=dataset,
        metadata=metadata,
    )


def _json(row: Mapping[str, Any], column: str, kind: type, at: str) -> Any:
    text = row.get(column)
    if text is None or text == "":
        return kind()
    label = "object" if kind is dict else "list"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets within thousands of others
        raise DataError(f"{at} has {column} that is not JSON ({error}); write a JSON {label}.") from error
    if not isinstance(value, kind):
        raise DataError(f"{at} has the {column} {value!r}; write a JSON {label}.")
    return value


def _strings(row: Mapping[str, Any], column: str, at: str) -> tuple[str, ...]:
    values = _json(row, column, list, at)
    for value in values:
        if not isinstance(value, str):
            raise DataError(f"{at} has {value!r} in {column}; write strings.")
    return tuple(values)
