"""A small part of the bundled collection as one's own tables: enough for a job, indexed in seconds."""

from __future__ import annotations

from pathlib import Path

from rl_cluster.datasets.enterprise_kb import CORPUS_NAME, generate
from rl_cluster.datasets.tables import write_tasks
from rl_cluster.retrieval.corpus import write_corpus


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
