"""Each drift changes what it says and nothing else; what the agent sees of it; and that it is repeatable."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.datasets.corpus import write_corpus
from rl_cluster.datasets.tables import write_tasks
from rl_cluster.datasets.task import Document, Task
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.episodes.formats import get_format
from rl_cluster.episodes.formats.base import ParsedReply
from rl_cluster.episodes.trajectory import ToolCall, Trajectory
from rl_cluster.errors import ConfigError, Outcome, SearchRequestError
from rl_cluster.evaluation.drift import drift_names, get_drift
from rl_cluster.evaluation.drift.base import Drift
from rl_cluster.evaluation.holm import holm
from rl_cluster.evaluation.measures import MeasureSettings
from rl_cluster.evaluation.players.baseline import Baseline
from rl_cluster.evaluation.players.scripted import Scripted
from rl_cluster.evaluation.question_sets import question_sets
from rl_cluster.evaluation.records import record_of
from rl_cluster.evaluation.runner import Evaluation, Played, report_of
from rl_cluster.evaluation.summary import EpisodeRecord
from rl_cluster.evaluation.world import World, check_documents, open_world
from tests.helpers.configuration import load_config
from tests.helpers.small_world import LEXICAL, SETTINGS, pump_questions, pump_world


def drifted(folder: Path, name: str, **settings: Any) -> World:
    return pump_world(folder, get_drift({"name": name, **settings}))


def scores(world: World) -> list[float]:
    player = Baseline("bm25_search")

    async def all_tasks() -> list[Trajectory]:
        return [await player.play(world, task, 0) for task in world.tasks]

    played = asyncio.run(all_tasks())
    return [record_of(t, task).score for t, task in zip(played, world.tasks, strict=True)]


def step(world: World, reply: ParsedReply, tool_format: str = "hermes") -> Any:
    return asyncio.run(world.episode(world.tasks[0], 0, get_format(tool_format)).step(reply))


def call(name: str = "bm25_search", **arguments: object) -> ParsedReply:
    return ParsedReply([ToolCall(name, arguments)])


def test_undisturbed_world_finds_every_page(tmp_path: Path) -> None:
    world = pump_world(tmp_path)
    assert min(scores(world)) > 0.7
    assert "pumps-0 | Page north" in step(world, call(query="north pump")).observations[0]


def test_documents_removed_stay_in_the_ideal_ranking(tmp_path: Path) -> None:
    world = drifted(tmp_path, "documents_removed", share=0.4)
    found = scores(world)
    assert 0 < sum(score < 0.5 for score in found) < 12
    assert all(len(task.gains) == 2 for task in world.tasks)
    assert scores(drifted(tmp_path, "documents_removed", share=0.4)) == found


def test_documents_replaced_take_their_gains_along(tmp_path: Path) -> None:
    world = drifted(tmp_path, "documents_replaced", share=1.0)
    assert set(world.tasks[0].gains) == {"pumps-0-v2", "pumps-1-v2"}
    assert world.tasks[0].task_id == "pumps-q0"
    assert min(scores(world)) > 0.7
    assert "replaces pumps-0" in step(world, call(query="north pump")).observations[0]


def test_distractors_join_and_keep_the_old_documents(tmp_path: Path) -> None:
    world = pump_world(tmp_path, get_drift({"name": "distractors", "factor": 10}), limit=3)
    found = asyncio.run(world.client.search("bm25_search", "pump", 100, ()))
    assert sum(document.doc_id.startswith("distractor-") for document in found) > 50
    assert world.index_id != pump_world(tmp_path).index_id


def test_distractors_hold_no_part_of_a_document_that_a_question_has_a_gain_for() -> None:
    documents = [Document(f"d{i}", f"title{i}", f"first{i} second{i}") for i in range(6)]
    drift, ids = get_drift({"name": "distractors", "factor": 10}), [document.doc_id for document in documents]
    gold = {"d0", "d1", "d4"}
    assert drift.problem(ids, gold) == ""
    added = drift.documents(documents, ids, gold, 0)[6:]
    words = {word for document in added for word in (document.title, *document.text.split())}
    assert len(added) == 60
    assert words == {f"{word}{i}" for word in ("title", "first", "second") for i in (2, 3, 5)}


def test_distractors_of_documents_that_are_all_relevant_are_refused_in_one_sentence(tmp_path: Path) -> None:
    questions = pump_questions(tmp_path / "pumps")
    drifts = {"more": get_drift({"name": "distractors", "factor": 1}), "gone": get_drift({"name": "empty_retriever"})}
    with pytest.raises(ConfigError) as caught:
        check_documents(questions, questions.read_corpus(), drifts)
    assert str(caught.value) == (
        "pumps: evaluation.drift.more needs a document that no question has a gain for, but all 12 have one; leave it out with "
        "~evaluation.drift.more."
    )
    check_documents(questions, questions.read_corpus(), {"gone": drifts["gone"]})


def test_new_ids_never_take_one_that_is_there(tmp_path: Path) -> None:
    documents = [Document(name, name, f"text of {name}") for name in ("report", "report-v2", "distractor-0", "other")]
    task = Task("t", "q?", "kb", {"report": 1.0, "report-v2": 0.5, "other-v2": 0.5})  # the corpus lacks the last one
    taken = {document.doc_id for document in documents} | set(task.gains)
    replaced = get_drift({"name": "documents_replaced", "share": 1.0})
    newer = [document.doc_id for document in replaced.documents(documents, taken, set(), 0)]
    assert newer == ["report-v2-2", "report-v2-v2", "distractor-0-v2", "other-v2-2"]
    (asked,) = replaced.tasks([task], taken, 0)
    assert asked.gains == {"report-v2-2": 1.0, "report-v2-v2": 0.5, "other-v2-v2": 0.5}
    grown = get_drift({"name": "distractors", "factor": 2}).documents(documents, taken, set(task.gains), 0)
    ids = [document.doc_id for document in grown]
    assert ids[4:6] == ["distractor-0-2", "distractor-1"]
    assert len(set(ids)) == len(ids) == 12


def test_documents_replaced_of_a_corpus_with_versions_is_searched(tmp_path: Path) -> None:
    folder = tmp_path / "versions"
    documents = [Document(name, name, f"pump {name}") for name in ("report", "report-v2", "distractor-0")]
    write_corpus(folder / "corpus.parquet", "kb", documents)
    write_tasks(folder / "tasks.parquet", {"test": [Task("t", "pump report", "kb", {"report-v2": 1.0})]})
    (questions,) = question_sets([str(folder)], load_config([]).data, "test", None)
    for name, settings in (("documents_replaced", {"share": 1.0}), ("distractors", {"factor": 3})):
        drift = get_drift({"name": name, **settings})
        world = open_world(questions, questions.read_corpus(), drift, SETTINGS, LEXICAL, tmp_path / "indexes", seed=3)
        assert scores(world)[0] > 0


@pytest.mark.parametrize("tool_format", ["hermes", "plain"])
def test_tools_renamed_answer_to_the_new_name_alone(tmp_path: Path, tool_format: str) -> None:
    world = drifted(tmp_path, "tools_renamed", names={"bm25_search": "find_words"})
    environment = world.episode(world.tasks[0], 0, get_format(tool_format))
    assert [tool.name for tool in environment.tools] == ["find_words"]
    assert "bm25_search" not in environment.system
    assert "pumps-0" in step(world, call("find_words", query="north pump")).observations[0]


def test_schema_changed_shows_and_reads_other_arguments(tmp_path: Path) -> None:
    world = drifted(tmp_path, "schema_changed", arguments={"query": "text", "k": "limit"})
    environment = world.episode(world.tasks[0], 0, get_format("hermes"))
    assert set(environment.tools[0].parameters["properties"]) == {"text", "limit"}
    assert environment.tools[0].parameters["required"] == ["text"]
    observation = step(world, call(text="north pump", limit=1)).observations[0]
    assert observation.startswith("pumps-0")
    assert len(observation.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "settings", "meets"),
    [
        ("tools_renamed", {"names": {}}, {"baseline": False, "plain": True, "hermes": True}),
        ("other_k", {"k": 2}, {"baseline": False, "plain": True, "hermes": True}),
        ("schema_changed", {"arguments": {}}, {"baseline": False, "plain": False, "hermes": True}),
        ("empty_retriever", {}, {"baseline": True, "plain": True, "hermes": True}),
    ],
)
def test_drift_applies_to_those_who_can_meet_it(name: str, settings: dict[str, Any], meets: dict[str, bool]) -> None:
    formats = {"baseline": Baseline("bm25_search").tool_format, "plain": Scripted().tool_format}
    formats["hermes"] = get_format("hermes")
    drift = get_drift({"name": name, **settings})
    assert {who: drift.applies_to(tool_format) for who, tool_format in formats.items()} == meets


def test_other_k_shows_as_many_hits(tmp_path: Path) -> None:
    assert len(step(drifted(tmp_path, "other_k", k=2), call(query="pump")).found_ids) == 2


def test_new_filter_hides_what_does_not_meet_it(tmp_path: Path) -> None:
    found = step(drifted(tmp_path, "new_filter", field="kind", values=["page"]), call(query="pump", k=10)).found_ids
    assert found
    assert all(int(doc_id.rpartition("-")[2]) % 2 for doc_id in found)


def test_new_filter_on_an_unknown_field_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SearchRequestError, match="colour"):
        drifted(tmp_path, "new_filter", field="colour", values=["red"])


def test_search_failing_is_seen_tagged_and_no_infrastructure_failure(tmp_path: Path) -> None:
    tools = SearchEnvironmentSettings(4, 4, 10, ("bm25_search", "vector_search"))
    world = pump_world(tmp_path, get_drift({"name": "search_failing", "rate": 1.0}), tools)
    result = step(world, call(query="pump"))
    assert result.observations[0] == "error: bm25_search did not answer, try again (injected)"
    played = asyncio.run(Scripted().play(world, world.tasks[0], 0))
    record = record_of(played, world.tasks[0])
    assert (record.injected, record.searches, record.malformed_calls) == (1, 1, 0)
    assert not played.outcome.is_infrastructure_failure


def test_search_failing_fails_at_its_rate_and_a_second_try_may_succeed(tmp_path: Path) -> None:
    world = drifted(tmp_path, "search_failing", rate=0.5)
    assert 15 < sum(asyncio.run(answered(world, 0, 0, times=60))) < 45


async def answered(world: World, place: int, sample: int, times: int, query: str = "pump") -> list[bool]:
    """Which searches of one episode are answered."""
    client, found = world.search_client(world.tasks[place], sample), []
    for _ in range(times):
        await asyncio.sleep(0)  # lets other episodes in between
        try:
            await client.search("bm25_search", query, 2, ())
            found.append(True)
        except SearchRequestError:
            found.append(False)
    return found


def test_search_failing_is_the_same_whoever_else_searches_and_in_which_order(tmp_path: Path) -> None:
    world = drifted(tmp_path, "search_failing", rate=0.5)
    episodes = [(place, sample) for place in range(3) for sample in range(2)]

    async def together(order: list[tuple[int, int]]) -> list[list[bool]]:
        return list(await asyncio.gather(*(answered(world, *episode, times=8) for episode in order)))

    alone = [asyncio.run(answered(world, *episode, times=8)) for episode in episodes]
    interleaved = asyncio.run(together([*reversed(episodes), *reversed(episodes)]))
    assert interleaved == alone[::-1] * 2
    assert len({tuple(found) for found in alone}) == len(episodes)
    assert asyncio.run(answered(world, 0, 0, times=8, query="another")) == alone[0]


def test_search_slow_changes_no_answer_and_is_tagged(tmp_path: Path) -> None:
    slow = drifted(tmp_path, "search_slow", rate=1.0, delay_s=0.001)
    assert scores(slow) == scores(pump_world(tmp_path))
    (found,) = step(slow, call(query="north pump")).calls
    assert (found.injected, found.error, "pumps-0" in found.found_ids) == (True, None, True)
    played = asyncio.run(Baseline("bm25_search").play(slow, slow.tasks[0], 0))
    record = record_of(played, slow.tasks[0])
    assert (record.injected, record.searches, record.malformed_calls) == (1, 1, 0)
    (refused,) = step(slow, call(query=" ")).calls
    assert (refused.injected, refused.error is None) == (False, False)


def test_search_slow_as_long_as_the_deadline_is_seen_tagged_and_no_infrastructure_failure(tmp_path: Path) -> None:
    drift = get_drift({"name": "search_slow", "rate": 1.0, "delay_s": 0.01})
    late = pump_world(tmp_path, drift, timeout_s=0.01)
    result = step(late, call(query="north pump"))
    assert result.observations[0] == "error: bm25_search did not answer in time, try again (injected)"
    assert [found.injected for found in result.calls] == [True]
    played = asyncio.run(Baseline("bm25_search").play(late, late.tasks[0], 0))
    record = record_of(played, late.tasks[0])
    assert (record.injected, record.searches, record.malformed_calls) == (1, 1, 0)
    assert played.outcome is Outcome.NO_ANSWER
    in_time = pump_world(tmp_path, drift, timeout_s=60.0)
    assert "pumps-0" in step(in_time, call(query="north pump")).found_ids


def test_search_slow_tags_the_slowed_searches_alone(tmp_path: Path) -> None:
    world = drifted(tmp_path, "search_slow", rate=0.5, delay_s=0.001)
    player = Baseline("bm25_search")

    async def all_at_once() -> list[Trajectory]:
        return list(await asyncio.gather(*(player.play(world, task, 0) for task in world.tasks)))

    tagged = sum(played.turns[0].tool_calls[0].injected for played in asyncio.run(all_at_once()))
    assert 0 < tagged < len(world.tasks)


def test_empty_and_random_retrievers_leave_nothing_to_find(tmp_path: Path) -> None:
    empty = drifted(tmp_path, "empty_retriever")
    assert scores(empty) == [0.0] * 12
    assert step(empty, call(query="pump")).observations[0] == "nothing found"
    chance = drifted(tmp_path, "random_retriever")
    ids = step(chance, call(query="pump", k=5)).found_ids
    assert len(set(ids)) == 5
    assert step(chance, call(query="pump", k=5)).found_ids == ids
    excluded = asyncio.run(chance.search_client(chance.tasks[0], 0).search("bm25_search", "pump", 12, ("pumps-0",)))
    assert "pumps-0" not in [document.doc_id for document in excluded]


def test_get_drift_unknown_name_and_setting_are_named() -> None:
    with pytest.raises(ConfigError, match="choose one of distractors, documents_removed"):
        get_drift({"name": "flood"})
    with pytest.raises(ConfigError, match=r"evaluation.drift.x.share=2.0 is refused"):
        get_drift({"name": "documents_removed", "share": 2.0}, "evaluation.drift.x.")


def test_drifts_each_have_a_file_of_settings() -> None:
    folder = Path(__file__).resolve().parents[2] / "hydra_conf" / "evaluation" / "drift"
    assert {path.stem for path in folder.glob("*.yaml")} == {*drift_names(), "suite"}


def test_baseline_without_hits_hands_in_nothing(tmp_path: Path) -> None:
    world = pump_world(tmp_path)
    task = world.tasks[0].__class__("t", "zebra", "pumps", {"pumps-0": 1.0})
    assert asyncio.run(Baseline("bm25_search").play(world, task, 0)).outcome is Outcome.NO_ANSWER


def test_report_of_drifts_is_corrected_over_the_drifts_of_each_system() -> None:
    rng = random.Random(6)

    def played(loss: float) -> Played:
        def records() -> list[EpisodeRecord]:
            return [
                EpisodeRecord(f"t{i}", "kb", Outcome.FINISHED, max(0.0, rng.random() - loss), 1, 1, 0, 0, 0.0)
                for i in range(30)
            ]

        return Played({"agent": records(), "bm25": records()})

    drifts = {name: Drift() for name in ("gone", "slow", "renamed")}
    worlds = {"gone": played(0.4), "slow": played(0.05), "renamed": played(0.2)}
    del worlds["renamed"].records["bm25"]
    evaluation = Evaluation([], {None: played(0.0), **worlds})
    content = report_of(
        "t", ["agent", "bm25"], evaluation, MeasureSettings(pass_k=(1,), resamples=1000), {}, drifts, {}, {}
    )
    for system, number in (("agent", 3), ("bm25", 2)):
        met = {entry["name"]: entry["systems"][system] for entry in content.drifts if system in entry["systems"]}
        assert len(met) == number
        expected = holm({name: part["p"] for name, part in met.items()})
        assert {name: part["p_holm"] for name, part in met.items()} == expected
    assert content.drifts[2]["does_not_apply"] == ["bm25"]
    pairs = {entry["name"]: entry["pairs"] for entry in content.drifts}
    assert pairs.pop("renamed") == {}
    found = {name: part["bm25 - agent"] for name, part in pairs.items()}
    for name, part in found.items():
        both = [sum(record.ndcg for record in worlds[name].records[system]) / 30 for system in ("agent", "bm25")]
        assert part["ndcg@10"] == pytest.approx(both[1] - both[0])
    assert {name: part["p_holm"] for name, part in found.items()} == holm({n: p["p"] for n, p in found.items()})
