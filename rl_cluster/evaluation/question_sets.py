"""Which questions an evaluation asks: prepared folders, each data set over the corpus that its tasks name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_cluster.config import DataConfig
from rl_cluster.datasets.manifest import is_confidential
from rl_cluster.datasets.sampling import some_tasks
from rl_cluster.datasets.source import prepare_data
from rl_cluster.datasets.tables import read_tasks
from rl_cluster.datasets.task import Task
from rl_cluster.errors import DataError
from rl_cluster.evaluation.world import QuestionSet


def question_sets(folders: Sequence[str], data: DataConfig, split: str, limit: int | None) -> list[QuestionSet]:
    """One set per folder and corpus, named `FOLDER/CORPUS` where a folder has several. `limit` is per set, see `sampling.some_tasks`.

    Without `folders`, the set of `data`. Raises DataError where a file is missing or malformed, a split is empty, or two
    folders have one name.
    """
    places = [(Path(folder).expanduser().absolute(), "") for folder in folders]
    if not places:
        places = [(prepare_data(data), data.name if data.name != "tables" else "")]
    sets: list[QuestionSet] = []
    for folder, name in places:
        if not folder.is_dir():
            raise DataError(
                f"folders={folder}: there is no such folder; name one that `rl_cluster.prepare` has written."
            )
        if not (folder / "corpus.parquet").is_file():
            made = (folder / "tasks.parquet").is_file()
            mend = (
                "prepare the data set with its documents" if made else "name one that `rl_cluster.prepare` has written"
            )
            raise DataError(f"folders={folder}: corpus.parquet is missing; {mend}.")
        label, confidential = name or folder.name, is_confidential(folder)
        by_corpus: dict[str, list[Task]] = {}
        for task in read_tasks(folder / "tasks.parquet", split, label):
            by_corpus.setdefault(task.corpus, []).append(task)
        for corpus, tasks in sorted(by_corpus.items()):
            dataset = label if len(by_corpus) == 1 else f"{label}/{corpus.removeprefix(f'{label}/')}"
            named = tuple(Task(**{**vars(task), "dataset": dataset}) for task in some_tasks(tasks, limit))
            sets.append(QuestionSet(dataset, folder, corpus, named, confidential))
    names = [found.dataset for found in sets]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"folders={list(folders)} has two sets named {twice!r}; rename one of the folders.")
    return sets
