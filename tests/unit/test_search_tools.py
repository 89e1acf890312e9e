"""Optional tools and arguments: off by default, checked like the others, written in every tool format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from rl_cluster.datasets.task import Task
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search import SearchEnvironment, SearchEnvironmentSettings, system_prompt
from rl_cluster.environments.search_tools import ReadPart, SearchToolSettings, tool_specs
from rl_cluster.episodes.formats import get_format
from rl_cluster.errors import SearchRequestError

TASK = Task("t1", "which pump?", "kb", {"d1": 1.0}, excluded=("d9",))
ALL = SearchEnvironmentSettings(6, 4, 10, ("bm25_search", "read_document"), ("kind", "year"))
FORMATS = ("plain", "hermes", "llama3", "qwen3_coder")


@dataclass
class Service:
    asked: list[tuple] = field(default_factory=list)

    async def search(
        self, tool: str, query: str, k: int, excluded: tuple[str, ...], filters: Mapping[str, Any] | None = None
    ) -> list[FoundDocument]:
        self.asked.append((tool, query, k, excluded, filters))
        return [FoundDocument("d1", "Runbook", "the north pump")]

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart:
        self.asked.append((doc_id, part, excluded))
        if part > 2:
            raise SearchRequestError("part is 3; it has 2")
        return ReadPart(doc_id, "Runbook", "first line\nsecond line", part, 2)


def test_specs_without_options_are_as_ever() -> None:
    for spec in tool_specs(SearchToolSettings(4, 10)):
        assert list(spec.parameters["properties"]) == ["query", "k"]
    assert "FIELD" not in system_prompt(SearchEnvironmentSettings(5, 4, 10), get_format("plain"))


def test_plain_instructions_name_reading_and_fields() -> None:
    prompt = system_prompt(ALL, get_format("plain"))
    assert "read_document: ID reads a found document" in prompt
    assert "conditions on kind, year" in prompt


CALLS = [
    ("bm25_search", {"query": "pump (north)", "k": 3, "filters": {"year": {"gte": 2020}, "kind": ["wiki", "mail"]}}),
    ("bm25_search", {"query": "pump"}),
    ("bm25_search", {"query": "pump", "filters": {"kind": "wiki"}}),
    ("read_document", {"doc_id": "d1"}),
    ("read_document", {"doc_id": "d1", "part": 2}),
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("tool", "arguments"), CALLS)
def test_call_written_and_read_again_is_the_same(name: str, tool: str, arguments: dict[str, object]) -> None:
    format_ = get_format(name)
    (call,) = format_.parse(format_.write_call(tool, arguments), tool_specs(ALL.tool_settings)).calls
    assert (call.name, call.arguments, call.error) == (tool, arguments, None)


def play(*replies: str) -> tuple[list[str], Service, list]:
    async def scenario() -> tuple[list[str], Service, list]:
        service, format_ = Service(), get_format("plain")
        environment = SearchEnvironment(TASK, ALL, format_, service)
        seen, found = [], []
        for reply in replies:
            result = await environment.step(format_.parse(reply, environment.tools))
            seen += result.observations
            found.append(result.found_ids)
        return seen, service, found

    return asyncio.run(scenario())


def test_environment_filters_and_reads_with_the_tasks_excluded_ids() -> None:
    seen, service, found = play('bm25_search(2, {"kind": "wiki"}): pump', "read_document(2): d1")
    assert service.asked == [("bm25_search", "pump", 2, ("d9",), {"kind": "wiki"}), ("d1", 2, ("d9",))]
    assert seen[1] == "d1 | Runbook | part 2 of 2: first line second line"
    assert found == [["d1"], []]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ('bm25_search({"colour": 1}): pump', "error: there is no field 'colour'; filter by kind, year"),
        ('bm25_search({"kind": }): pump', "error: the filters are not a JSON object"),
        ("bm25_search(x): pump", "error: 'x' is not a number of results"),
        ("read_document(x): d1", "error: 'x' is not a number of a part"),
        ("read_document(0): d1", "error: part must be 1 or more"),
        ("read_document(3): d1", "error: part is 3; it has 2"),
        ("read_document:", "error: the doc_id is empty"),
    ],
)
def test_environment_wrong_call_is_answered_in_the_conversation(reply: str, says: str) -> None:
    seen, _, _ = play(reply)
    assert seen == [says]
