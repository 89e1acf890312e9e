"""What the demonstrators search for and hand in."""

from __future__ import annotations

import pytest

from rl_cluster.datasets.task import Task
from rl_cluster.demonstrators import get_demonstrator
from rl_cluster.demonstrators.judgements import MAX_QUERY_WORDS
from rl_cluster.environments.search import MAX_RANKING
from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.errors import ConfigError

TOOLS = SearchToolSettings(4, 10, ("bm25_search", "read_document", "vector_search"))
Asked = list[tuple[str, str, int]]


def play(task: Task, shown: dict[str, list[str]], tools: SearchToolSettings = TOOLS) -> tuple[Asked, list[str]]:
    """The searches of `judgements`, and its ranking; `shown`: ids by tool."""
    script, asked, observation = get_demonstrator("judgements")(task, tools), [], None
    while True:
        try:
            call = next(script) if observation is None else script.send(observation)
        except StopIteration as stop:
            return asked, stop.value
        asked.append((call.tool, call.query, call.k))  # pyright: ignore[reportAttributeAccessIssue]
        observation = "\n".join(f"{doc_id} | title | text" for doc_id in shown[call.tool]) or "nothing found"


def task(gains: dict[str, float], prompt: str = "which  pump\nis it?", task_id: str = "t") -> Task:
    return Task(task_id, prompt, "kb", gains)


def test_judgements_relevant_documents_stand_first_and_by_gain() -> None:
    shown = {"bm25_search": ["x", "b"], "vector_search": ["y", "a", "b"]}
    asked, ranking = play(task({"a": 2.0, "b": 1.0, "x": 0.0}), shown)
    assert sorted(asked) == [("bm25_search", "which pump is it?", 4), ("vector_search", "which pump is it?", 4)]
    assert ranking[:2] == ["a", "b"]
    assert set(ranking[2:]) == {"x", "y"}


def test_judgements_search_that_shows_all_relevant_documents_is_the_last() -> None:
    shown = {"bm25_search": ["x", "a"], "vector_search": ["a", "x"]}
    asked, ranking = play(task({"a": 1.0}), shown)
    assert len(asked) == 1
    assert ranking == ["a", "x"]


def test_judgements_each_tool_is_the_first_for_some_questions() -> None:
    shown = {"bm25_search": ["a"], "vector_search": ["a"]}
    first = {play(task({"a": 1.0}, task_id=f"t{number}"), shown)[0][0][0] for number in range(20)}
    assert first == {"bm25_search", "vector_search"}


def test_judgements_nothing_relevant_shown_demonstrates_nothing() -> None:
    assert play(task({"a": 1.0}), {"bm25_search": ["x"], "vector_search": []})[1] == []


def test_judgements_long_question_and_many_hits_stay_within_bounds() -> None:
    hits = [f"d{number}" for number in range(30)]
    asked, ranking = play(task({"d29": 1.0}, "word " * 500), {"bm25_search": hits, "vector_search": hits})
    assert len(asked[0][1].split()) == MAX_QUERY_WORDS
    assert ranking == ["d29", *hits[: MAX_RANKING - 1]]


def test_demonstrator_unknown_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"warmup\.demonstrator='oracle' is unknown; choose one of enterprise_kb, jud"
    ):
        get_demonstrator("oracle")
