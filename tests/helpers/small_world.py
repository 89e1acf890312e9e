"""A world of a few pumps, searched by words, for tests of systems and drifts."""

from __future__ import annotations

from pathlib import Path

from rl_cluster.datasets.corpus import write_corpus
from rl_cluster.datasets.tables import write_tasks
from rl_cluster.datasets.task import Document, Task
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.evaluation.drift.base import Drift
from rl_cluster.evaluation.question_sets import question_sets
from rl_cluster.evaluation.world import QuestionSet, World, open_world
from rl_cluster.retrieval.settings import IndexSettings

PLACES = (
    "north",
    "south",
    "east",
    "west",
    "harbour",
    "tower",
    "bridge",
    "garden",
    "market",
    "mill",
    "chapel",
    "quarry",
)
SETTINGS = SearchEnvironmentSettings(max_turns=4, k=4, max_k=10, tools=("bm25_search",))
LEXICAL = IndexSettings(parts=("lexical",))


def write_pumps(folder: Path, corpora: tuple[str, ...] = ("pumps",)) -> Path:
    """One question for each place and corpus; its page is worth 1, its neighbour 0.5."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks, documents = [], {}
    for corpus in corpora:
        documents[corpus] = [
            Document(
                f"{corpus}-{i}", f"Page {place}", f"All about the {place} pump.", {"kind": "page" if i % 2 else "note"}
            )
            for i, place in enumerate(PLACES)
        ]
        for i, place in enumerate(PLACES):
            gains = {f"{corpus}-{i}": 1.0, f"{corpus}-{(i + 1) % len(PLACES)}": 0.5}
            tasks.append(Task(f"{corpus}-q{i}", f"Where is the {place} pump?", corpus, gains))
    write_tasks(folder / "tasks.parquet", {"test": tasks})
    if len(corpora) == 1:
        write_corpus(folder / "corpus.parquet", corpora[0], documents[corpora[0]])
    else:
        _write_several(folder / "corpus.parquet", documents)
    return folder


def _write_several(path: Path, documents: dict[str, list[Document]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for corpus, found in documents.items():
        part = path.with_name(f"{corpus}.parquet")
        write_corpus(part, corpus, found)
        parts.append(pq.read_table(part))
        part.unlink()
    pq.write_table(pa.concat_tables(parts), path)


def pump_questions(folder: Path, limit: int | None = None) -> QuestionSet:
    from tests.helpers.configuration import load_config

    (questions,) = question_sets([str(write_pumps(folder))], load_config([]).data, "test", limit)
    return questions


def pump_world(
    folder: Path,
    drift: Drift | None = None,
    settings: SearchEnvironmentSettings = SETTINGS,
    limit: int | None = None,
    timeout_s: float | None = None,
) -> World:
    """Opened with an index below `folder`; the first `limit` questions, or all; `timeout_s` of a search."""
    questions = pump_questions(folder / "data", limit)
    corpus = questions.read_corpus()
    indexes = folder / "indexes"
    return open_world(questions, corpus, drift or Drift(), settings, LEXICAL, indexes, seed=3, timeout_s=timeout_s)
