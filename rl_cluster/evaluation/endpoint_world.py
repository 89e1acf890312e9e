"""A world whose searches are answered by an endpoint of the team's own, as in training with `search.external`.

Its documents are not at hand: no drift can change them, and the corpus of the folder may hold only those that tasks name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.config import SearchConfig
from rl_cluster.datasets.corpus import Corpus
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.environments.search_tools import ReadPart
from rl_cluster.errors import ConfigError
from rl_cluster.evaluation.drift.base import Drift, filtered
from rl_cluster.evaluation.world import QuestionSet, World
from rl_cluster.service.http_search import HttpSearchClient, http_search_settings, try_tool
from rl_cluster.service.values import SEARCH_TOOLS


class EndpointSearch:
    """An endpoint as `drift.base.EvaluationSearch`. It is asked for at most `max_k` results; they come with their snippets."""

    def __init__(self, client: HttpSearchClient, max_k: int, timeout_s: float | None) -> None:
        self.client = client
        self.max_k = max_k
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
        return await self.client.search(tool, query, min(k, self.max_k), excluded, filters)

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart:
        return await self.client.read(doc_id, part, excluded)


def check_endpoint_worlds(
    search: SearchConfig, tools: Sequence[str], sets: Sequence[QuestionSet], drifts: Mapping[str, Drift]
) -> None:
    """Raises ConfigError where the endpoint lacks one of the `tools`, where a drift needs its documents at hand, where questions ask
    several corpora, and where they are confidential."""
    external = search.external
    assert external is not None
    http_search_settings(search)
    for tool in tools:
        if tool in SEARCH_TOOLS and tool not in external.tools:
            raise ConfigError(
                f"search.external.tools has no {tool}, which a system asks; add it, or leave out the system or environment.tools' entry."
            )
        if tool not in SEARCH_TOOLS and external.document_url is None:
            raise ConfigError(
                f"search.external.document_url is not set, but environment.tools offers {tool}; set it, or leave {tool} out."
            )
    for name, drift in drifts.items():
        unfiltered = [tool for tool, template in external.tools.items() if "{filters}" not in str(template)]
        if drift.filters and external.kind == "http_json" and unfiltered:
            raise ConfigError(
                f"search.external.tools.{unfiltered[0]} has no {{filters}}, which evaluation.drift.{name} needs; add it, or leave the drift "
                f"out with ~evaluation.drift.{name}."
            )
        if drift.needs_documents:
            raise ConfigError(
                f"evaluation.drift.{name} needs all documents at hand, but {external.url} answers from its own; leave it out with "
                f"~evaluation.drift.{name}."
            )
    corpora = sorted({questions.corpus for questions in sets})
    if len(corpora) > 1:
        raise ConfigError(
            f"search.external.url={external.url} answers from one collection, but the questions ask {len(corpora)} corpora "
            f"({', '.join(corpora[:5])}); evaluate one of them."
        )
    held = [questions.dataset for questions in sets if questions.confidential]
    if held:
        raise ConfigError(
            f"search.external.url={external.url} would be sent questions of {held[0]}, which is confidential by its manifest; leave search at "
            "default."
        )


async def open_endpoint_world(
    questions: QuestionSet,
    corpus: Corpus,
    drift: Drift,
    environment: SearchEnvironmentSettings,
    search: EndpointSearch,
    tools: Sequence[str],
    identity: str,
    seed: int,
) -> World:
    """The questions under a drift that leaves documents as they are; `identity` stands in place of an index's id.

    Each of the `tools` is tried with the drift's filters. Raises ConfigError where the endpoint refuses it, ToolTimeoutError or
    ToolUnavailableError where it does not answer.
    """
    for tool in tools:
        await try_tool(search.client, tool, drift.filters)
    taken = {*corpus.doc_ids, *(doc_id for task in questions.tasks for doc_id in (*task.gains, *task.excluded))}
    tasks, told = drift.tasks(questions.tasks, taken, seed), drift.environment(environment)
    client = filtered(search, drift.filters)
    return World(questions.dataset, tasks, client, told, drift, identity, corpus.doc_ids, seed)
