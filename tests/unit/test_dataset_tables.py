import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.tables import TASK_COLUMNS, check_tasks, read_tasks, write_tasks
from rl_cluster.datasets.task import Task
from rl_cluster.errors import DataError

TASK = Task("t1", "Where is it?", "kb", {"d1": 3.0, "d2": 0.0}, ("d9",), ("here",), "de", "mine", {"x": [1]})


def _write(path, **changed):
    row = {
        "task_id": "t1",
        "query_id": "q1",
        "prompt": "Where?",
        "gains": '{"d1": 1}',
        "excluded": "[]",
        "answers": "[]",
        "corpus": "kb",
        "split": "test",
        "locale": "en",
        "metadata": "{}",
    }
    rows = [row, {**row, "task_id": "t2", **changed}]
    pq.write_table(pa.table({column: [r[column] for r in rows] for column in TASK_COLUMNS}), path)
    return path


def test_tasks_written_and_read_are_equal(tmp_path):
    path = tmp_path / "tasks.parquet"
    assert write_tasks(path, {"test": [TASK], "train": []}) == 1
    (again,) = read_tasks(path, "test", "mine")
    assert again.metadata.pop("query_id") == "t1"
    assert again == TASK


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"task_id": "t1"}, ["row 2", "'t1'", "row 1", "unique"]),
        ({"task_id": ""}, ["row 2", "task_id"]),
        ({"gains": "{d1: 1}"}, ["row 2", "'t2'", "gains", "not JSON"]),
        ({"gains": '{"d1": -1}'}, ["row 2", "-1", "'d1'", "from 0 to 1e+09"]),
        ({"gains": '{"d1": "high"}'}, ["'high'", "from 0 to 1e+09"]),
        ({"gains": "[1]"}, ["gains", "object"]),
        ({"gains": f'{{"d1": {"9" * 400}}}'}, ["row 2", "999", "'d1'", "from 0 to 1e+09"]),
        ({"gains": f'{{"d1": {"9" * 5000}}}'}, ["row 2", "gains", "not JSON"]),
        ({"metadata": "[" * 10**5}, ["row 2", "metadata", "not JSON"]),
        ({"gains": '{"d1": NaN}'}, ["row 2", "nan", "'d1'"]),
        ({"excluded": "[1]"}, ["excluded", "strings"]),
        ({"prompt": "  "}, ["row 2", "prompt", "text"]),
    ],
)
def test_read_tasks_malformed_row_names_row_value_and_mend(tmp_path, changed, words):
    with pytest.raises(DataError) as error:
        read_tasks(_write(tmp_path / "tasks.parquet", **changed), "test")
    assert all(word in str(error.value) for word in ["tasks.parquet", *words])


@pytest.mark.parametrize("column", ["locale", "prompt", "gains"])
def test_read_tasks_column_of_another_kind_is_named(tmp_path, column):
    table = pq.read_table(_write(tmp_path / "tasks.parquet"))
    place = table.column_names.index(column) if column in table.column_names else len(table.column_names)
    numbers = pa.array([7] * len(table))
    changed = (
        table.set_column(place, column, numbers)
        if place < len(table.column_names)
        else table.append_column(column, numbers)
    )
    pq.write_table(changed, tmp_path / "other.parquet")
    with pytest.raises(DataError, match=rf"other\.parquet: the column '{column}' holds int64; write it as text"):
        read_tasks(tmp_path / "other.parquet", "test")


def test_read_tasks_column_of_categories_is_text(tmp_path):
    table = pq.read_table(_write(tmp_path / "tasks.parquet"))
    place = table.column_names.index("split")
    categories = table.column("split").dictionary_encode()
    pq.write_table(table.set_column(place, "split", categories), tmp_path / "tasks.parquet")
    assert len(read_tasks(tmp_path / "tasks.parquet", "test")) == len(table)


def test_read_tasks_text_that_is_not_utf8_is_refused(tmp_path):
    table = pq.read_table(_write(tmp_path / "tasks.parquet"))
    latin = pa.array([b"caf\xe9"] * len(table), pa.binary()).view(pa.string())
    table = table.set_column(table.column_names.index("prompt"), "prompt", latin)
    pq.write_table(table, tmp_path / "tasks.parquet")
    with pytest.raises(DataError, match=r"tasks\.parquet: a text in it is not UTF-8 .*; write it again in UTF-8"):
        read_tasks(tmp_path / "tasks.parquet", "test")


def test_read_tasks_empty_split_names_those_present(tmp_path):
    with pytest.raises(DataError, match=r"'validation' has no task.*present: test"):
        read_tasks(_write(tmp_path / "tasks.parquet"), "validation")


def test_read_tasks_missing_file_or_column_raises(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_tasks(tmp_path / "none.parquet", "test")
    pq.write_table(pa.table({"task_id": ["a"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="'prompt' is missing"):
        read_tasks(tmp_path / "t.parquet", "test")


@pytest.mark.parametrize(
    ("task", "word"),
    [
        (Task("t", "q", "kb", {"nope": 1.0}), "'nope', which the corpus lacks"),
        (Task("t", "q", "kb", {"d1": -1.0}), "-1.0"),
        (Task("t", "q", "kb", {"d1": float("nan")}), "nan"),
        (Task("t", "q", "kb", {"d1": 0.0}), "above 0"),
        (Task("t", "q", "kb", {"d1": 1.0}, excluded=("d1",)), "excludes"),
        (Task("t", "q", "other", {"d1": 1.0}), "'other'"),
    ],
)
def test_check_tasks_that_cannot_be_scored_raise(task, word):
    with pytest.raises(DataError, match=word):
        check_tasks([task], {"d1"}, "kb")


def test_check_tasks_repeated_id_raises():
    good = Task("t", "q", "kb", {"d1": 1.0})
    check_tasks([good], {"d1"})
    with pytest.raises(DataError, match="'t' stands twice"):
        check_tasks([good, good], {"d1"})


def test_task_columns_hold_json_text(tmp_path):
    write_tasks(tmp_path / "t.parquet", {"test": [TASK]})
    (row,) = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert json.loads(row["gains"]) == {"d1": 3.0, "d2": 0.0}
    assert json.loads(row["answers"]) == ["here"]
