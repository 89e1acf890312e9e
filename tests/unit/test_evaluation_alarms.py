"""Alarms: what each measures on hand-made groups, and that usual runs raise none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import ConfigError, MetricError, Outcome
from rl_cluster.evaluation.alarms import (
    copied_answers,
    entropy_alarm,
    flat_metric_alarm,
    identical_groups,
    idle_share,
    query_variety,
    step_alarms,
    step_metrics,
)
from rl_cluster.evaluation.external import get_external_metric


def episode(queries: list[str], found: list[list[str]], ranking: list[str], reward: float = 1.0) -> Trajectory:
    turns = [
        Turn(
            [],
            [],
            [],
            [],
            text=f"bm25_search: {q}",
            tool_calls=[ToolCall("bm25_search", {"query": q}, found_ids=tuple(f))],
            observations=["o"],
        )
        for q, f in zip(queries, found, strict=True)
    ]
    turns.append(Turn([], [], [], [], text=f"answer: {' '.join(ranking)}"))
    return Trajectory("x", "t", "g", turns, Outcome.FINISHED, reward, ranking=ranking)


def test_copied_answers_counts_rankings_in_the_order_of_one_search() -> None:
    copied = episode(["a"], [["d1", "d2", "d3"]], ["d1", "d2"])
    ranked = episode(["a"], [["d1", "d2", "d3"]], ["d2", "d1"])
    unrewarded = episode(["a"], [["d1", "d2"]], ["d1", "d2"], reward=0.0)
    assert copied_answers({"g": [copied, ranked, unrewarded]}) == 0.5
    assert copied_answers({"g": [unrewarded]}) is None


def test_copied_answers_each_call_of_a_turn_is_compared_by_itself() -> None:
    second = episode(["a"], [["d1", "d2"]], ["d5", "d6"])
    second.turns[0].tool_calls.append(ToolCall("vector_search", {"query": "b"}, found_ids=("d5", "d6", "d7")))
    across = episode(["a"], [["d1", "d2"]], ["d1", "d2", "d5"])
    across.turns[0].tool_calls.append(ToolCall("vector_search", {"query": "b"}, found_ids=("d5",)))
    assert copied_answers({"g": [second]}) == 1.0
    assert copied_answers({"g": [across]}) == 0.0


def test_idle_share_leaves_the_first_search_out() -> None:
    same = episode(["a", "b"], [["d1"], ["d1"]], ["d1"])
    new = episode(["a", "b"], [["d1"], ["d2"]], ["d1"])
    assert idle_share({"g": [same, new]}) == 0.5
    assert idle_share({"g": [episode(["a"], [["d1"]], ["d1"])]}) is None


def test_idle_share_of_a_subset_counts_and_reading_does_not() -> None:
    part = episode(["a", "b"], [["d1", "d2"], ["d2"]], ["d1"])
    reads = episode(["a"], [["d1"]], ["d1"])
    read = ToolCall("read_document", {"doc_id": "d1"})
    reads.turns[1:1] = [Turn([], [], [], [], tool_calls=[read], observations=["o"]) for _ in range(2)]
    assert idle_share({"g": [part, reads]}) == 1.0
    assert idle_share({"g": [reads]}) is None


def test_query_variety_is_zero_for_the_same_words_and_one_for_none_shared() -> None:
    a, b, c = (episode([q], [["d"]], ["d"]) for q in ("north pump", "pump north", "south valve"))
    assert query_variety({"g": [a, b]}) == 0.0
    assert query_variety({"g": [a, c]}) == 1.0
    assert query_variety({"g": [a]}) is None


def test_identical_groups_compare_texts_word_for_word() -> None:
    a, b = episode(["x"], [["d"]], ["d"]), episode(["y"], [["d"]], ["d"])
    assert identical_groups({"g": [a, a], "h": [a, b], "single": [a]}) == 0.5


def test_step_alarms_collapsed_step_raises_all_four_and_varied_one_none() -> None:
    collapsed = {"g": [episode(["a", "a"], [["d1", "d2"], ["d1", "d2"]], ["d1", "d2"])] * 4}
    assert len(step_alarms(step_metrics(collapsed))) == 4
    varied = {"g": [episode([f"a{i}", f"b{i}"], [["d1", "d2"], [f"e{i}"]], ["d2", "d1"]) for i in range(4)]}
    assert step_alarms(step_metrics(varied)) == []


def test_step_alarms_invalid_calls_are_raised_over_a_fifth() -> None:
    good = ToolCall("bm25_search", {"query": "pump"}, found_ids=("d1",))
    bad = ToolCall("", {}, error="no call found")
    made = episode(["a"], [["d1"]], ["d1"])
    made.turns[0].tool_calls = [good, good, good, bad]
    assert step_metrics({"g": [made]})["alarms/invalid_calls"] == 0.25
    assert "25% of the tool calls are malformed or refused" in step_alarms(step_metrics({"g": [made]}))
    made.turns[0].tool_calls = [good, good, good, good, bad]
    assert not any("malformed" in alarm for alarm in step_alarms(step_metrics({"g": [made]})))


def test_entropy_alarm_collapse_is_raised_and_a_decline_is_not() -> None:
    assert entropy_alarm([0.5, 0.4, 0.6, 0.04]) == (
        "the policy's entropy fell from 0.500 to 0.040 nats a token: it hardly explores any more"
    )
    assert entropy_alarm([0.5, 0.4, 0.6, 0.06]) is None
    assert entropy_alarm([0.5, 0.4, 0.01]) is None


def validations(*means: float) -> list[dict[str, float]]:
    return [{"step": 10.0 * i, "mean": m, "low": m - 0.05, "high": m + 0.05} for i, m in enumerate(means)]


def test_flat_metric_alarm_reward_up_alone_raises_and_both_up_does_not() -> None:
    rising = [(float(step), 0.02 * step) for step in range(1, 21)]
    alarm = flat_metric_alarm(rising, validations(0.3, 0.31, 0.29), "recall@10")
    assert alarm is not None
    assert "recall@10 went from 0.300 to 0.290" in alarm
    assert flat_metric_alarm(rising, validations(0.3, 0.4, 0.5), "recall@10") is None
    assert flat_metric_alarm([(s, 0.3) for s, _ in rising], validations(0.3, 0.3, 0.3), "recall@10") is None
    assert flat_metric_alarm(rising, validations(0.3, 0.3), "recall@10") is None


def test_flat_metric_alarm_too_few_questions_to_tell_says_nothing() -> None:
    rising = [(float(step), 0.02 * step) for step in range(1, 21)]  # by 0.28 from the first third to the last
    for half_width, said in ((0.27, True), (0.29, False)):
        few = [
            {**v, "low": v["mean"] - half_width, "high": v["mean"] + half_width} for v in validations(0.3, 0.31, 0.42)
        ]
        assert (flat_metric_alarm(rising, few, "recall@10") is not None) == said


def constant(task: Task, trajectory: Trajectory) -> float:
    return 0.25


def test_external_metric_is_a_name_or_a_function_and_failures_are_zero() -> None:
    task, played = Task("t", "q", "kb", {"d2": 1.0}), episode(["a"], [["d1"]], ["d1", "d2"])
    assert get_external_metric("mrr")(task, played) == 0.5
    assert get_external_metric(f"{__name__}:constant")(task, played) == 0.25
    played.outcome = Outcome.TURN_LIMIT
    assert get_external_metric("recall@10")(task, played) == 0.0


@pytest.mark.parametrize("name", ["bleu", "nowhere.at:all", "math:nothing", "math:pi"])
def test_external_metric_unknown_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"evaluation.external_metric={name}"):
        get_external_metric(name)


def reward_of(task: Task, trajectory: Trajectory) -> Any:
    if isinstance(trajectory.reward, Exception):
        raise trajectory.reward
    return trajectory.reward


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (ZeroDivisionError("division by zero"), "raised ZeroDivisionError: division by zero; mend the function"),
        (math.nan, "gave nan; return a finite number"),
        (-math.inf, "gave -inf; return a finite number"),
        (np.float32("nan"), "gave nan; return a finite number"),
        (None, "gave None; return a finite number"),
        ("0.5", "gave '0.5'; return a finite number"),
        (1j, "gave 1j; return a finite number"),
    ],
)
def test_external_metric_of_ones_own_in_error_is_one_sentence(value: Any, problem: str) -> None:
    metric = get_external_metric(f"{__name__}:reward_of")
    with pytest.raises(MetricError) as error:
        metric(Task("t", "q", "kb", {"d2": 1.0}), episode([], [], ["d1"], reward=value))
    where = f"evaluation.external_metric={__name__}:reward_of, for an episode of task t that ended with finished,"
    assert str(error.value).replace("np.float32(nan)", "nan") == f"{where} {problem}."


@pytest.mark.parametrize("value", [1, True, np.float32(1.0), np.int64(1)])
def test_external_metric_of_ones_own_any_number_is_a_float(value: Any) -> None:
    metric = get_external_metric(f"{__name__}:reward_of")
    given = metric(Task("t", "q", "kb", {"d2": 1.0}), episode([], [], ["d1"], reward=value))
    assert (given, type(given)) == (1.0, float)
