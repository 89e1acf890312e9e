"""A collection of any size from one seed: documents as a stream, tasks by split, and both on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from rl_cluster.datasets.corpus import write_corpus
from rl_cluster.datasets.enterprise_kb.documents import mean_words, office_documents, slots, write_document
from rl_cluster.datasets.enterprise_kb.plan import CollectionPlan, plan_collection
from rl_cluster.datasets.enterprise_kb.questions import flavours, gains, question
from rl_cluster.datasets.tables import write_tasks
from rl_cluster.datasets.task import Document, Task

CORPUS_NAME = "enterprise_kb"


def generate(num_documents: int, seed: int, train: int = 512, validation: int = 64, test: int = 320) -> KnowledgeBase:
    """A knowledge base of exactly `num_documents` documents (2,000 to 500,000) and the given numbers of tasks.

    Equal arguments give equal bytes. No product is asked about in two splits. Raises DataError for a size out of range
    and for more tasks than the documents can carry.
    """
    splits = {"train": train, "validation": validation, "test": test}
    return KnowledgeBase(plan_collection(num_documents, seed, splits), splits)


class KnowledgeBase:
    """A planned collection; documents are written while one iterates, tasks when they are first asked for."""

    corpus = CORPUS_NAME

    def __init__(self, plan: CollectionPlan, splits: dict[str, int]):
        self._plan = plan
        self._splits = splits

    def __len__(self) -> int:
        return self._plan.num_documents

    def documents(self) -> Iterator[Document]:
        """All documents; their ids are a random permutation, so that neither id nor neighbourhood tells anything."""
        seed, words = self._plan.seed, mean_words(self._plan.num_documents)
        doc_ids = self._doc_ids()
        for product in self._plan.products():
            for slot in slots(product, seed):
                yield write_document(product, slot, next(doc_ids), seed, words)
        yield from office_documents(seed, doc_ids, words)

    @cached_property
    def tasks(self) -> dict[str, list[Task]]:
        """The tasks of every split, in an order that separates those about one product."""
        seed = self._plan.seed
        doc_ids = self._doc_ids()
        drafts: dict[str, list[dict[str, Any]]] = {split: [] for split in self._splits}
        for product in self._plan.asked:
            ids = {slot: next(doc_ids) for slot in slots(product, seed)}
            rng = Random(f"enterprise_kb/{seed}/questions/{product.index}")
            for plan in product.intents:
                metadata = {
                    "flavours": flavours(product, plan),
                    "product": product.identifier,
                    "searches": 2 if product.old_identifier is None else 3,
                }
                draft = {"prompt": question(product, plan, rng), "gains": gains(plan, ids), "metadata": metadata}
                drafts[product.split or ""].append(draft)
        tasks = {}
        for split, found in drafts.items():
            Random(f"enterprise_kb/{seed}/tasks/{split}").shuffle(found)
            tasks[split] = [
                Task(task_id=f"ekb-{split}-{i:04d}", corpus=CORPUS_NAME, dataset=CORPUS_NAME, **draft)
                for i, draft in enumerate(found)
            ]
        return tasks

    def write(self, folder: str | Path) -> dict[str, Any]:
        """Writes `corpus.parquet`, `tasks.parquet` and `manifest.json`; returns the manifest (counts and hashes)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_corpus(folder / "corpus.parquet", CORPUS_NAME, self.documents())
        write_tasks(folder / "tasks.parquet", self.tasks)
        manifest = {
            "corpus": CORPUS_NAME,
            "seed": self._plan.seed,
            "num_documents": len(self),
            "tasks": {split: len(tasks) for split, tasks in self.tasks.items()},
            "sha256": {name: _sha256(folder / name) for name in ("corpus.parquet", "tasks.parquet")},
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
        return manifest

    def _doc_ids(self) -> Iterator[str]:
        numbers = list(range(len(self)))
        Random(f"enterprise_kb/{self._plan.seed}/ids").shuffle(numbers)
        width = max(4, len(str(len(self) - 1)))
        return (f"d{number:0{width}d}" for number in numbers)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
