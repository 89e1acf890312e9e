"""Prepares data sets as the command line does and reads what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from rl_cluster.datasets.preparation.progress import PreparationProgress
from rl_cluster.datasets.preparation.settings import PrepareConfig
from rl_cluster.prepare import PREPARE, prepare
from tests.helpers.configuration import load

FIXTURES = Path(__file__).resolve().parents[1] / "data" / "datasets"
# Whose questions have relevant documents; search_r1 has answers alone.
JUDGED_SETS = (
    "frames", "bright", "enterprise_rag_bench", "esci", "musique", "mlqa", "freshstack", "wixqa", "browsecomp_plus", "wands",
)  # fmt: skip
JSON_COLUMNS = ("gains", "excluded", "answers", "metadata")


@dataclass(frozen=True)
class Prepared:
    """A prepared folder: tasks by query id with their JSON decoded, documents by (corpus, id), the manifest."""

    folder: Path
    tasks: dict[str, dict[str, Any]]
    documents: dict[tuple[str, str], dict[str, Any]]
    manifest: dict[str, Any]

    def gains(self) -> dict[str, dict[str, float]]:
        return {query_id: task["gains"] for query_id, task in self.tasks.items()}

    def texts(self) -> dict[str, str]:
        """By document id: title and text, as the index reads them, one below the other."""
        return {
            doc_id: "\n".join(part for part in (row["title"], row["text"]) if part)
            for (_, doc_id), row in self.documents.items()
        }


def run_prepare(dataset: str, source: Path | str, out: Path, *overrides: str) -> Prepared:
    """Composes, checks and prepares; `source` is quoted for Hydra."""
    return run_config(load(PREPARE, [f"dataset={dataset}", f"source='{source}'", f"out='{out}'", *overrides]))


def run_config(config: PrepareConfig) -> Prepared:
    """Prepares what a checked configuration asks for."""
    with PreparationProgress(Console(quiet=True)) as progress:
        manifest = prepare(config, progress)
    return read_prepared(Path(config.out), manifest)


def prepare_fixture(name: str, out: Path, *overrides: str) -> Prepared:
    """Prepares the fixture of a data set."""
    return run_prepare(name, FIXTURES / name, out / name, *overrides)


def read_prepared(folder: Path, manifest: dict[str, Any]) -> Prepared:
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8")) == json.loads(json.dumps(manifest))
    tasks = {}
    for row in pq.read_table(folder / "tasks.parquet").to_pylist():
        tasks[row["query_id"]] = {**row, **{column: json.loads(row[column]) for column in JSON_COLUMNS}}
    documents = {
        (row["corpus"], row["doc_id"]): {**row, "metadata": json.loads(row["metadata"])}
        for row in pq.read_table(folder / "corpus.parquet").to_pylist()
    }
    return Prepared(folder, tasks, documents, manifest)


def expected(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / name / "expected.json").read_text(encoding="utf-8"))


def write_jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_own(folder: Path, tasks: list[dict[str, Any]], documents: list[dict[str, Any]]) -> Path:
    """A folder in the layout of one's own JSONL."""
    write_jsonl(folder / "tasks.jsonl", *tasks)
    write_jsonl(folder / "corpus.jsonl", *documents)
    return folder
