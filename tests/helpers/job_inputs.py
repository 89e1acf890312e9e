"""A model folder and a data folder that pass the checks before a job, for tests that spoil one thing of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.corpus import CORPUS_SCHEMA
from rl_cluster.datasets.tables import write_tasks
from rl_cluster.datasets.task import Task
from rl_cluster.errors import RLClusterError
from rl_cluster.preflight import check_inputs
from tests.helpers.configuration import load_config

SPLITS = ("train", "validation", "test")


def task(name: str, **changes: object) -> Task:
    settings: dict[str, object] = {"prompt": f"Where is {name}?", "corpus": "kb", "gains": {"d1": 1.0}}
    return Task(name, **{**settings, **changes})  # type: ignore[arg-type]


class Inputs:
    """A model folder and a data folder that pass; each test spoils one thing."""

    def __init__(self, root: Path, model: Path) -> None:
        self.model, self.data = root / "model", root / "data"
        shutil.copytree(model, self.model, copy_function=os.link)
        self.data.mkdir()
        self.tasks = {split: [task(f"{split}-{number}") for number in range(4)] for split in SPLITS}
        self.write_corpus(["d1", "d2", "d3"])

    def write_corpus(self, ids: list[str | None]) -> None:
        """Without the checks of the project's own writer."""
        rows = {
            "corpus": ["kb"] * len(ids),
            "doc_id": ids,
            "title": ["title"] * len(ids),
            "text": ["text"] * len(ids),
            "metadata": ["{}"] * len(ids),
            "locale": [""] * len(ids),
        }
        pq.write_table(pa.table(rows, schema=CORPUS_SCHEMA), self.data / "corpus.parquet")

    def add_corpus(self, name: str, doc_id: str) -> None:
        """A second corpus with one document, and a training task that asks it."""
        table = pq.read_table(self.data / "corpus.parquet")
        values = (name, doc_id, "title", "text", "{}", "")
        row = {column: [value] for column, value in zip(CORPUS_SCHEMA.names, values, strict=True)}
        pq.write_table(pa.concat_tables([table, pa.table(row, schema=CORPUS_SCHEMA)]), self.data / "corpus.parquet")
        self.tasks["train"].append(task(f"asks-{name}", corpus=name))

    def change_column(self, column: str, row: int, value: str | None) -> None:
        write_tasks(self.data / "tasks.parquet", self.tasks)
        table = pq.read_table(self.data / "tasks.parquet").to_pydict()
        table[column][row] = value
        pq.write_table(pa.table(table), self.data / "tasks.parquet")

    def check(self, *overrides: str, write: bool = True) -> None:
        if write:
            write_tasks(self.data / "tasks.parquet", self.tasks)
        data = ["data=tables", f"data.folder='{self.data}'", f"model.name='{self.model}'", "warmup=none"]
        check_inputs(load_config([*data, *overrides]))


def refusal(expected: type[RLClusterError], call: Callable[..., None], *overrides: str, write: bool = True) -> str:
    with pytest.raises(expected) as caught:
        call(*overrides, write=write)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert "; " in message
    return message
