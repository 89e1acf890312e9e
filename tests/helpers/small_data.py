"""A small part of the bundled collection as one's own tables: enough for a job, indexed in seconds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rl_cluster.datasets.corpus import write_corpus
from rl_cluster.datasets.enterprise_kb import CORPUS_NAME, generate
from rl_cluster.datasets.tables import write_tasks

SECOND_CORPUS = "kb/second"


def write_small_tables(folder: Path, train: int = 12, held_out: int = 4, distractors: int = 60) -> Path:
    """Writes `tasks.parquet` and `corpus.parquet` with the documents of a few tasks and some others."""
    base = generate(2000, seed=3, train=train, validation=held_out, test=held_out)
    wanted = {doc_id for tasks in base.tasks.values() for task in tasks for doc_id in task.gains}
    documents, others = [], 0
    for document in base.documents():
        if document.doc_id in wanted:
            documents.append(document)
        elif others < distractors:
            others += 1
            documents.append(document)
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder / "corpus.parquet", CORPUS_NAME, documents)
    write_tasks(folder / "tasks.parquet", base.tasks)
    return folder


def write_two_corpora(tables: Path, folder: Path) -> Path:
    """The tables of `tables` with all documents a second time, as the corpus `kb/second`, which every other task asks."""
    folder.mkdir(parents=True)
    documents = pq.read_table(tables / "corpus.parquet")
    second = documents.set_column(0, documents.schema.field("corpus"), pa.array([SECOND_CORPUS] * len(documents)))
    pq.write_table(pa.concat_tables([documents, second]), folder / "corpus.parquet")
    tasks = pq.read_table(tables / "tasks.parquet").to_pydict()
    tasks["corpus"] = [SECOND_CORPUS if index % 2 else name for index, name in enumerate(tasks["corpus"])]
    pq.write_table(pa.table(tasks), folder / "tasks.parquet")
    return folder
