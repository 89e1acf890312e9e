"""The search environment: search tools, a ranking of document ids at the end.

One instance serves one episode and is then thrown away. Text of documents reaches the model as an observation only; it
is never read as a call or an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rl_cluster.datasets.task import Task
from rl_cluster.environments.search_tools import SearchClient, SearchToolSettings, call_tool, tool_specs
from rl_cluster.episodes.environment import StepResult
from rl_cluster.episodes.formats.base import ParsedReply, ToolFormat
from rl_cluster.episodes.trajectory import ToolCall
from rl_cluster.errors import Outcome, SearchRequestError

MAX_RANKING = 10
_ID_SEPARATORS = re.compile(r"[\s,;]+")
_WRAPPING = "[](){}\"'`."
_WRAPPERS = re.escape(_WRAPPING)


@dataclass(frozen=True)
class SearchEnvironmentSettings:
    """`max_turns` replies in all; the others as `SearchToolSettings` has them."""

    max_turns: int
    k: int
    max_k: int
    tools: tuple[str, ...] = ("bm25_search", "vector_search")
    filter_fields: tuple[str, ...] = ()

    @property
    def tool_settings(self) -> SearchToolSettings:
        return SearchToolSettings(self.k, self.max_k, self.tools, self.filter_fields)


def system_prompt(settings: SearchEnvironmentSettings, tool_format: ToolFormat) -> str:
    """The same for every task, so that its keys and values are computed once."""
    instructions = tool_format.instructions(tool_specs(settings.tool_settings))
    ending = "answer: IDS ends with the ids of the best documents, best first."
    return f"Find documents in {settings.max_turns} turns. {instructions}\n{ending}".strip()


class SearchEnvironment:
    """One episode of searching for one task."""

    def __init__(self, task: Task, settings: SearchEnvironmentSettings, tool_format: ToolFormat, client: SearchClient):
        self.task = task
        self.settings = settings
        self.tools = tool_specs(settings.tool_settings)
        self.system = system_prompt(settings, tool_format)
        self.question = task.prompt
        self.client = client
        self.turns = 0
        self.shown: set[str] = set()

    async def step(self, reply: ParsedReply) -> StepResult:
        """Carries out one reply. Infrastructure failures of the service are raised, never turned into text."""
        self.turns += 1
        if reply.answer is not None:
            ranking = read_ranking(reply.answer, self.shown)
            outcome = Outcome.FINISHED if ranking else Outcome.INVALID_ANSWER
            return StepResult(outcome=outcome, ranking=ranking)
        last_turn = self.turns >= self.settings.max_turns
        if last_turn and not reply.calls:
            return StepResult(outcome=Outcome.NO_ANSWER)
        if last_turn:
            return StepResult(outcome=Outcome.TURN_LIMIT, calls=reply.calls)
        if not reply.calls:
            names = " or ".join(tool.name for tool in self.tools)
            malformed = ToolCall("", {}, f"no call and no answer found; use {names}, or answer: IDS")
            return StepResult(observations=[f"error: {malformed.error}"], calls=[malformed])
        result = StepResult(calls=list(reply.calls))
        for position, call in enumerate(reply.calls):
            result.observations.append(await self._call(position, call, result))
        return result

    async def _call(self, position: int, call: ToolCall, result: StepResult) -> str:
        if call.error is not None:
            return f"error: {call.error}"
        try:
            answer = await call_tool(self.client, self.settings.tool_settings, call, self.task.excluded)
        except SearchRequestError as error:
            return self._refuse(position, call, result, str(error))
        found = tuple(document.doc_id for document in answer.found)
        self.shown.update(found)
        result.calls[position] = replace(call, found_ids=found)
        return answer.observation

    def _refuse(self, position: int, call: ToolCall, result: StepResult, error: str) -> str:
        result.calls[position] = replace(call, error=error)
        return f"error: {error}"


def read_ranking(answer: str, shown: Iterable[str] = ()) -> list[str]:
    """Document ids in the order given, at most ten; a repeated id stays where it stands, for the metric to judge.

    Ids stand between blanks, commas or semicolons. One that holds such a character itself, or ends in a bracket or a full stop,
    is read where it is among those that searches of the episode have `shown`; of two that begin alike the longer.
    """
    odd = sorted((doc_id for doc_id in shown if _parts(doc_id) != [doc_id]), key=len, reverse=True)
    if not odd:
        return _parts(answer)[:MAX_RANKING]
    whole = re.compile(rf"(?<![^\s,;{_WRAPPERS}])({'|'.join(map(re.escape, odd))})(?![^\s,;{_WRAPPERS}])")
    # Splitting at a pattern with a group gives texts and what it matched in turns.
    pieces = whole.split(answer)
    ids = [part for place, piece in enumerate(pieces) for part in ([piece] if place % 2 else _parts(piece))]
    return ids[:MAX_RANKING]


def write_ranking(ranking: Sequence[str]) -> str:
    """What `read_ranking` reads back: commas only where an id holds blanks."""
    plain = all(_parts(doc_id) == [doc_id] for doc_id in ranking)
    return (" " if plain else ", ").join(ranking)


def _parts(text: str) -> list[str]:
    return [part for piece in _ID_SEPARATORS.split(text) if (part := piece.strip(_WRAPPING))]
