"""Summaries: failures stay in the denominator, pairs are questions, tables fit the terminal."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from rl_cluster.errors import DataError, Outcome
from rl_cluster.evaluation.comparison import compare_systems, rows
from rl_cluster.evaluation.holm import holm
from rl_cluster.evaluation.measures import MeasureSettings
from rl_cluster.evaluation.power import smallest_detectable_effect
from rl_cluster.evaluation.summary import EpisodeRecord, compare, summarise
from rl_cluster.evaluation.table import comparison_table, result_table


def record(task: str, ndcg: float = 0.5, outcome: Outcome = Outcome.FINISHED, dataset: str = "d") -> EpisodeRecord:
    return EpisodeRecord(task, dataset, outcome, ndcg, 4, 2, 1, 100, 1.5)


def test_summarise_crashed_episodes_stay_in_the_denominator() -> None:
    """10 tasks of which 3 crash; the denominator is 10 and the share of crashes is shown."""
    records = [record(f"q{i}", 1.0) for i in range(7)]
    records += [record("q7", 1.0, Outcome.WORKER_LOST), record("q8", 1.0, Outcome.TOOL_TIMEOUT)]
    records += [record("q9", 1.0, Outcome.TURN_LIMIT)]
    summary = summarise(records)
    assert summary.n == summary.episodes == 10
    assert summary.ndcg.mean == pytest.approx(0.7)
    assert summary.ndcg_finished is not None
    assert summary.ndcg_finished.mean == 1.0
    assert summary.failure_rate.mean == pytest.approx(0.1)
    assert summary.failures == {"turn_limit": 1}
    assert summary.infrastructure == {"tool_timeout": 1, "worker_lost": 1}
    assert summary.turns is not None
    assert summary.turns.n == 8


def test_summarise_rollouts_of_a_question_count_as_one() -> None:
    records = [record("a", 1.0)] * 9 + [record("b", 0.0)]
    summary = summarise(records)
    assert (summary.n, summary.episodes) == (2, 10)
    assert summary.ndcg.mean == 0.5


def test_summarise_same_task_id_in_two_datasets_is_two_questions() -> None:
    summary = summarise([record("1", dataset="x"), record("1", dataset="y")])
    assert summary.n == 2
    assert summary.as_json()["questions_by_dataset"] == {"x": 1, "y": 1}


def test_summarise_json_has_the_agreed_keys() -> None:
    result = json.loads(json.dumps(summarise([record("a"), record("b", 0.1)]).as_json(), allow_nan=False))
    assert {"ndcg@10", "failure_rate", "turns", "n", "ci95"} <= result.keys()
    assert result["ndcg@10"] == pytest.approx(0.3)
    assert result["ci95"][0] <= 0.3 <= result["ci95"][1]
    single = json.loads(json.dumps(summarise([record("a", 1.0, Outcome.CANCELLED)]).as_json(), allow_nan=False))
    assert single["ci95"] is None
    assert single["turns"] is None


def test_summarise_order_of_records_does_not_matter() -> None:
    rng = random.Random(0)
    records = [record(f"q{i % 20}", rng.random()) for i in range(60)]
    shuffled = rng.sample(records, len(records))
    assert summarise(shuffled) == summarise(records)


@pytest.mark.parametrize("bad", [[], [record("a", float("nan"))], [record("a", 1.5)]])
def test_summarise_unusable_records_raise(bad: list[EpisodeRecord]) -> None:
    with pytest.raises(DataError):
        summarise(bad)


def test_compare_splits_the_gain_into_ranking_and_failure_avoidance() -> None:
    before = [record("a", 0.2), record("b", 0.4), record("c", 0.0, Outcome.TURN_LIMIT), record("d", 0.9)]
    after = [record("a", 0.6), record("b", 0.4), record("c", 0.8), record("d", 0.0, Outcome.NO_ANSWER)]
    pair = compare(before, after)
    assert pair.n == 4
    assert pair.ndcg.mean == pytest.approx((0.4 + 0.8 - 0.9) / 4)
    assert pair.ranking.mean == pytest.approx(0.4 / 4)
    assert pair.failure_avoidance.mean == pytest.approx((0.8 - 0.9) / 4)
    assert {"ndcg@10", "ci95", "p", "n", "ranking", "failure_avoidance"} <= pair.as_json().keys()


def test_compare_several_rollouts_average_over_all_pairs() -> None:
    before = [record("a", 0.2), record("a", 0.4), record("b", 0.5)]
    after = [record("a", 0.8), record("a", 0.0, Outcome.TURN_LIMIT), record("b", 0.5)]
    pair = compare(before, after)
    assert pair.ranking.mean == pytest.approx(((0.8 - 0.2) + (0.8 - 0.4)) / 4 / 2)
    assert pair.ndcg.mean == pytest.approx((0.4 - 0.3) / 2)
    assert pair.ranking.mean + pair.failure_avoidance.mean == pytest.approx(pair.ndcg.mean)


def test_compare_different_questions_raise() -> None:
    with pytest.raises(DataError, match="2 questions were evaluated on one side only"):
        compare([record("a"), record("b")], [record("a"), record("c")])


@pytest.mark.slow
def test_result_table_long_names_fit_100_columns() -> None:
    rng = random.Random(1)
    before = [record(f"q{i}", rng.random(), rng.choice(list(Outcome))) for i in range(1200)]
    after = [replace(entry, outcome=Outcome.FINISHED, sampled_tokens=12345) for entry in before]
    failed = [replace(entry, outcome=Outcome.TURN_LIMIT, turns=12, searches=11) for entry in before]
    systems = {
        "untrained": summarise(before),
        "trained, step 1200, dev split, seed 7": summarise(after),
        "broken": summarise(failed),
    }
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(result_table(systems, {"trained - untrained": compare(before, after)}))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(len(line) for line in lines) <= 100
    assert "…" not in text
    for name in ("untrained", "trained", "broken"):
        assert any(line.startswith(name) and line.endswith(" 1200") for line in lines)
    for expected in ("by ranking", "<0.001", "12345", "100% [100%, 100%]", "0% [0%, 0%]"):
        assert expected in text
    assert f"[{systems['untrained'].ndcg.low:.3f}, {systems['untrained'].ndcg.high:.3f}]" in text


def _printed(table: Any) -> str:
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_tables_show_how_often_each_system_failed_by_each_reason() -> None:
    before = [record("a", outcome=Outcome.TURN_LIMIT), record("b", outcome=Outcome.NO_ANSWER), *map(record, "cdefgh")]
    after = [record("a", outcome=Outcome.NO_ANSWER), *map(record, "bcdefgh")]
    comparison = compare_systems({"before": before, "after": after}, [], MeasureSettings(resamples=200))
    for table in (
        result_table({"before": summarise(before), "after": summarise(after)}),
        comparison_table(comparison),
    ):
        heads, _, first, second = _printed(table).split("Failed episodes by reason")[1].splitlines()[1:5]
        assert " ".join(heads.split()) == "system no answer turn limit"
        assert first.split() == ["before", "12.5%", "12.5%"]
        assert second.split() == ["after", "12.5%", "0.0%"]
    finished = {"after": summarise([record("a"), record("b")])}
    assert "Failed episodes" not in _printed(result_table(finished))


def test_compare_systems_corrects_over_data_sets_and_pairs() -> None:
    rng = random.Random(2)
    settings = MeasureSettings(resamples=1000)

    def system(gain: float) -> list[EpisodeRecord]:
        return [record(f"q{i}", min(1.0, rng.random() / 2 + gain), dataset="xy"[i % 2]) for i in range(60)]

    systems = {"base": system(0.0), "same": system(0.0), "better": system(0.3)}
    found = compare_systems(
        systems, [("base", "same"), ("base", "better")], settings, repeats={"r": ["same", "better"]}
    )
    assert [pair["name"] for pair in found["pairs"]] == ["same - base", "better - base"]
    for pair in found["pairs"]:
        assert set(pair["datasets"]) == {"x", "y"}
        assert all(part["p"] <= part["p_holm"] <= 1 for part in [*pair["datasets"].values(), pair["overall"]])
    assert found["pairs"][1]["overall"]["p_holm"] < 0.01 < found["pairs"][0]["overall"]["p_holm"]
    for part in (found["pairs"][0]["overall"], found["pairs"][0]["datasets"]["x"]):
        assert part["comparisons"] == 2
        assert part["smallest_detectable"] == smallest_detectable_effect(part["difference_sd"], part["n"], 2)
    alone = compare(systems["base"], systems["same"], settings.resamples).as_json()
    assert alone["comparisons"] == 1
    assert alone["smallest_detectable"] < found["pairs"][0]["overall"]["smallest_detectable"]
    assert found["systems"]["better"]["datasets"]["x"]["n"] == 30
    assert found["repeats"][0]["by_run"]["better"] == pytest.approx(found["pairs"][1]["overall"]["ndcg@10"])


def test_compare_systems_other_questions_raise() -> None:
    systems = {"a": [record("q1")], "b": [record("q2")]}
    with pytest.raises(DataError, match="on one side only"):
        compare_systems(systems, [("a", "b")], MeasureSettings(resamples=1000))
    with pytest.raises(DataError, match="different questions"):
        compare_systems(systems, [], MeasureSettings(resamples=1000), repeats={"r": ["b"]})


def test_compare_systems_pieces_stand_beneath_their_data_set_and_holm_goes_over_data_sets() -> None:
    rng = random.Random(3)

    def system(gain: float) -> list[EpisodeRecord]:
        names = ("fresh/a", "fresh/b", "fresh/c", "wands")
        return [record(f"q{i}", min(1.0, rng.random() / 2 + gain), dataset=names[i % 4]) for i in range(80)]

    found = compare_systems({"a": system(0.0), "b": system(0.1)}, [("a", "b")], MeasureSettings(resamples=1000))
    (pair,) = found["pairs"]
    assert [name for name, _ in rows(pair)] == ["fresh", "fresh/a", "fresh/b", "fresh/c", "wands", "all"]
    assert {name: part["n"] for name, part in pair["datasets"].items()} == {"fresh": 60, "wands": 20}
    for parts in (pair["datasets"], pair["pieces"]):
        expected = holm({name: part["p"] for name, part in parts.items()})
        assert {name: part["p_holm"] for name, part in parts.items()} == expected
    fresh = [part["ndcg@10"] for part in pair["pieces"].values()]
    assert pair["datasets"]["fresh"]["ndcg@10"] == pytest.approx(sum(fresh) / 3)
    assert found["systems"]["a"]["datasets"]["fresh"]["n"] == 60


def test_rows_of_an_only_data_set_have_the_p_value_that_is_corrected_over_the_pairs() -> None:
    rng = random.Random(4)
    systems = {name: [record(f"q{i}", rng.random()) for i in range(30)] for name in "abc"}
    found = compare_systems(systems, [("a", "b"), ("a", "c")], MeasureSettings(resamples=1000))
    for pair in found["pairs"]:
        assert rows(pair) == [("d", pair["overall"])]
    assert max(pair["overall"]["p_holm"] / pair["overall"]["p"] for pair in found["pairs"]) > 1
