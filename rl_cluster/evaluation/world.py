"""What systems are evaluated in: the questions of one data set, the index of its documents, and a drift of both.

A process that opens a world loads retrieval libraries, so it must not own a vLLM engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rl_cluster.datasets.corpus import Corpus, check_fields_known, fields_without_documents, read_corpus
from rl_cluster.datasets.tables import check_tasks
from rl_cluster.datasets.task import Task
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search import SearchEnvironment, SearchEnvironmentSettings
from rl_cluster.environments.search_tools import ReadPart
from rl_cluster.episodes.environment import StepResult
from rl_cluster.episodes.formats.base import ParsedReply, ToolFormat
from rl_cluster.episodes.trajectory import ToolCall
from rl_cluster.errors import ConfigError, SearchRequestError, ToolTimeoutError
from rl_cluster.evaluation.drift.base import Drift, EvaluationSearch, filtered, noted_injections
from rl_cluster.retrieval.devices import Devices
from rl_cluster.retrieval.index import SearchIndex
from rl_cluster.retrieval.memory import check_open, open_bytes
from rl_cluster.retrieval.settings import IndexSettings
from rl_cluster.service.values import SEARCH_TOOLS

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class QuestionSet:
    """The questions of one data set over one corpus of `folder`; texts of a `confidential` one are published nowhere."""

    dataset: str
    folder: Path
    corpus: str
    tasks: tuple[Task, ...]
    confidential: bool = False

    def read_corpus(self) -> Corpus:
        """Raises DataError where the corpus is malformed or lacks a relevant document that the tasks do not call missing."""
        corpus = read_corpus(self.folder / "corpus.parquet", self.corpus)
        check_tasks(self.tasks, corpus, self.corpus)
        return corpus

    @property
    def gold(self) -> set[str]:
        """Ids of the documents that some task has a gain for."""
        return {doc_id for task in self.tasks for doc_id, gain in task.gains.items() if gain > 0}

    def locales(self, corpus: Corpus) -> list[str]:
        """Those that the documents say they are in, or those of the tasks where they say none."""
        return corpus.locales or sorted({task.locale for task in self.tasks})


@dataclass
class World:
    """`tasks` under `drift`, and the index behind `client` of the documents `doc_ids`; close to what an episode of training meets."""

    dataset: str
    tasks: Sequence[Task]
    client: EvaluationSearch
    environment: SearchEnvironmentSettings
    drift: Drift
    index_id: str
    doc_ids: Sequence[str]
    seed: int

    def search_client(self, task: Task, sample: int) -> EvaluationSearch:
        """The search service as the episode number `sample` of a task meets it, whichever system plays it."""
        return self.drift.client(self.client, self.doc_ids, self.seed, f"{task.task_id}:{sample}")

    def episode(self, task: Task, sample: int, tool_format: ToolFormat) -> SearchEnvironment:
        """The environment of one episode."""
        client = self.search_client(task, sample)
        return _DriftedEnvironment(task, self.environment, tool_format, client, self.drift)


def open_world(
    questions: QuestionSet,
    corpus: Corpus,
    drift: Drift,
    environment: SearchEnvironmentSettings,
    settings: IndexSettings,
    indexes: Path,
    seed: int,
    devices: Devices | None = None,
    memory_gib: float | None = None,
    timeout_s: float | None = None,
) -> World:
    """Builds or opens the index of the drifted documents below `indexes`; `timeout_s` is that of a search.

    The drift has passed `check_documents`. Raises SearchRequestError for a filter that the documents' metadata cannot answer, and
    ConfigError where the index does not fit into `memory_gib` (None: the machine's).
    """
    originals = [corpus.at(position) for position in range(len(corpus))]
    # Relevant documents that the corpus lacks count too: a new document must not become one of them.
    taken = {*corpus.doc_ids, *(doc_id for task in questions.tasks for doc_id in (*task.gains, *task.excluded))}
    documents = drift.documents(originals, taken, questions.gold, seed)
    searched = corpus if documents is originals else Corpus.from_documents(corpus.name, documents)
    index = SearchIndex.open_or_build(searched, settings, indexes, memory_gib=memory_gib, devices=devices)
    check_open(indexes / index.index_id, open_bytes(index.manifest, settings, settings.parts), memory_gib)
    index.warm_up()
    inner = filtered(IndexSearch(index, timeout_s), drift.filters)
    if drift.filters:
        index.rank(index.tools[0], "a query that tries the filter", 1, filters=drift.filters)
    tasks = drift.tasks(questions.tasks, taken, seed)
    told = drift.environment(environment)
    return World(questions.dataset, tasks, inner, told, drift, index.index_id, searched.doc_ids, seed)


def check_filters(
    questions: QuestionSet, corpus: Corpus, filter_fields: Sequence[str], drifts: Mapping[str, Drift]
) -> None:
    """Raises ConfigError where agents or a drift could filter by a field that no document of the set has."""
    wanted = {*filter_fields, *(field for drift in drifts.values() for field in drift.filters or ())}
    missing = fields_without_documents(corpus, wanted)
    check_fields_known("environment.filter_fields", filter_fields, missing, questions.dataset)
    for name, drift in drifts.items():
        for field in missing & set(drift.filters or ()):
            raise ConfigError(
                f"evaluation.drift.{name} filters by {field!r}, which no document of {questions.dataset} has; set its field and values, or "
                f"leave it out with ~evaluation.drift.{name}."
            )


def check_documents(questions: QuestionSet, corpus: Corpus, drifts: Mapping[str, Drift]) -> None:
    """Raises ConfigError where a drift cannot be made of the documents of the set."""
    gold = questions.gold
    for name, drift in drifts.items():
        problem = drift.problem(corpus.doc_ids, gold)
        if problem:
            raise ConfigError(
                f"{questions.dataset}: evaluation.drift.{name} {problem}; leave it out with ~evaluation.drift.{name}."
            )


class IndexSearch:
    """Asks an index in this process; see `drift.base.EvaluationSearch`. Raises ToolTimeoutError after `timeout_s`."""

    def __init__(self, index: SearchIndex, timeout_s: float | None = None) -> None:
        self.index = index
        self.timeout_s = timeout_s

    async def search(
        self,
        tool: str,
        query: str,
        k: int,
        excluded: tuple[str, ...],
        filters: Mapping[str, Any] | None = None,
        snippets: bool = True,
    ) -> list[FoundDocument]:
        if tool not in SEARCH_TOOLS:
            raise SearchRequestError(f"There is no tool {tool!r}; use one of {', '.join(SEARCH_TOOLS)}.")
        name = SEARCH_TOOLS[tool]
        if snippets:
            hits = await self._in_time(self.index.search, name, query, k, excluded, filters)
            return [FoundDocument(hit.doc_id, hit.title, hit.snippet) for hit in hits]
        ranked = await self._in_time(self.index.rank, name, query, k, excluded, filters)
        return [FoundDocument(doc_id, "", "") for doc_id, _ in ranked]

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart:
        found = await self._in_time(self.index.read_document, doc_id, part, excluded)
        return ReadPart(found.doc_id, found.title, found.text, found.part, found.parts)

    async def _in_time(self, ask: Callable[..., _Answer], *arguments: Any) -> _Answer:
        try:
            return await asyncio.wait_for(asyncio.to_thread(ask, *arguments), self.timeout_s)
        except TimeoutError as error:
            raise ToolTimeoutError(
                f"The index {self.index.index_id[:12]} did not answer within search.timeout_s={self.timeout_s:g} s; raise it."
            ) from error


class _DriftedEnvironment(SearchEnvironment):
    """Tells the agent of drifted tools, and reads its calls back as calls of the undisturbed ones."""

    def __init__(
        self,
        task: Task,
        settings: SearchEnvironmentSettings,
        tool_format: ToolFormat,
        client: EvaluationSearch,
        drift: Drift,
    ) -> None:
        super().__init__(task, settings, tool_format, client)
        told = drift.tools(self.tools)
        before, now = tool_format.instructions(self.tools), tool_format.instructions(told)
        self.system = self.system.replace(before, now) if before else self.system
        self.tools = told
        self.drift = drift

    async def step(self, reply: ParsedReply) -> StepResult:
        return await super().step(self.drift.reply(reply))

    async def _call(self, position: int, call: ToolCall, result: StepResult) -> str:
        with noted_injections() as noted:
            observation = await super()._call(position, call, result)
        if noted:
            result.calls[position] = replace(result.calls[position], injected=True)
        return observation
