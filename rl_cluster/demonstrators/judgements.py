"""Demonstrations for any collection, from the judged documents of its training questions.

Each asks one search tool with the question, and the next where relevant documents are still missing; it hands in what the
searches showed, the relevant ones first. So a model is shown how calls and answers are written, when to stop, and which of
the shown documents were wanted; how to ask better than the question does is left to the reward. It cannot be used to measure
a model, since it knows the judgements.
"""

from __future__ import annotations

import zlib

from rl_cluster.datasets.task import Task
from rl_cluster.demonstrators.demonstration import Script
from rl_cluster.environments.hits import parse_documents
from rl_cluster.environments.scripted_searcher import ScriptedSearch
from rl_cluster.environments.search import MAX_RANKING
from rl_cluster.environments.search_tools import READ_TOOL, SearchToolSettings

MAX_QUERY_WORDS = 32
"""Some questions are pages long; a small model would learn to copy them."""


def script(task: Task, tools: SearchToolSettings) -> Script:
    """Returns no ranking where no search with the question shows a relevant document."""
    wanted = {doc_id for doc_id, gain in task.gains.items() if gain > 0}
    query = " ".join(task.prompt.split()[:MAX_QUERY_WORDS])
    searches = [tool for tool in tools.tools if tool != READ_TOOL]
    first = zlib.crc32(task.task_id.encode()) % len(
        searches
    )  # each tool is the first one for its share of the questions
    shown: dict[str, None] = {}
    for tool in [*searches[first:], *searches[:first]]:
        observation = yield ScriptedSearch(tool, query, tools.k)
        shown.update(dict.fromkeys(hit.doc_id for hit in parse_documents(observation)))
        if wanted <= shown.keys():
            break
    if not wanted & shown.keys():
        return []
    return sorted(shown, key=lambda doc_id: -task.gains.get(doc_id, 0.0))[:MAX_RANKING]
