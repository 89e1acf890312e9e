"""The report of a run: kept evaluations, pairs, and what a resumed run takes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.alarm_stage import AlarmStage
from actors.event_log import EventLog
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.alarms import flat_metric_alarm
from rl_cluster.evaluation.report import first_views
from rl_cluster.evaluation.summary import EpisodeRecord
from rl_cluster.tracking.report import RunReport
from rl_cluster.tracking.run_tracker import RunTracker
from tests.helpers.configuration import load_config


def records(scores: list[float], failed: int = 0) -> list[EpisodeRecord]:
    made = [EpisodeRecord(f"t{i}", "kb", Outcome.FINISHED, score, 3, 2, 0, 60, 1.0) for i, score in enumerate(scores)]
    for i in range(failed):
        made[i] = EpisodeRecord(f"t{i}", "kb", Outcome.TURN_LIMIT, 0.0, 5, 4, 0, 90, 1.0)
    return made


def report_in(folder: Path, *overrides: str, resumed_step: int | None = None) -> RunReport:
    config = load_config([f"output_dir={folder}", "evaluation.bootstrap_resamples=1000", *overrides])
    return RunReport(config, folder, resumed_step)


def fill(report: RunReport) -> None:
    for temperature in report.config.evaluation.temperatures:
        report.add("before", temperature, records([0.2, 0.4, 0.5, 0.1] * 5, failed=4), 0)
        report.add("after", temperature, records([0.7, 0.8, 0.9, 0.6] * 5), 8)
        report.add("control", temperature, records([0.3, 0.4, 0.6, 0.2] * 5), 0)


def test_report_written_has_systems_and_paired_differences_with_intervals(tmp_path: Path) -> None:
    report = report_in(tmp_path)
    fill(report)
    report.finish({"trained": 8}, [{"staleness/age_max": 2.0}], 60.0)
    written = json.loads((tmp_path / "report.json").read_text())
    for name in ("before", "after", "control"):
        assert {"ndcg@10", "failure_rate", "turns", "n"} <= set(written[name])
    assert written["before"]["failure_rate"] == 0.2
    assert written["paired"]["ndcg@10"] > 0.4
    assert written["paired"]["ci95"][0] > 0
    assert written["paired_control"]["ci95"][0] > 0
    assert written["greedy"]["paired"]["n"] == 20
    assert written["max_age"] == 2.0


def test_report_restored_keeps_the_start_and_an_end_of_the_same_step_only(tmp_path: Path) -> None:
    fill(report_in(tmp_path))
    resumed = report_in(tmp_path, resumed_step=8)
    assert resumed.restore("before", 0)
    assert not resumed.restore("before", 4)
    assert not resumed.restore("after", 12)
    assert resumed.restore("after", 8)
    assert resumed.as_json()["paired"]["n"] == 20


def test_report_resumed_before_the_end_that_was_evaluated_forgets_it(tmp_path: Path) -> None:
    fill(report_in(tmp_path))
    resumed = report_in(tmp_path, resumed_step=4)
    assert not resumed.restore("after", 8)
    assert resumed.restore("before", 0)
    assert not report_in(tmp_path, resumed_step=8).restore("after", 8)


def test_report_of_a_run_that_begins_forgets_all_that_one_before_it_left(tmp_path: Path) -> None:
    first = report_in(tmp_path)
    fill(first)
    first.add_validation(0, [0.5, 0.5])
    first.add_alarms(0, ["queries hardly differ"])
    again = report_in(tmp_path)
    assert not any(again.restore(name, step) for name, step in (("before", 0), ("after", 8), ("control", 0)))
    assert (again.validations, again.alarms) == ([], [])


def test_report_restored_from_files_without_rewards_has_none(tmp_path: Path) -> None:
    fill(report_in(tmp_path))
    for path in (tmp_path / "evaluations").glob("before_*.json"):
        kept = json.loads(path.read_text())
        for each in kept["records"]:
            del each["reward"]
        path.write_text(json.dumps(kept))
    resumed = report_in(tmp_path, resumed_step=0)
    assert resumed.restore("before", 0)
    assert {record.reward for records in resumed.records.values() for record in records} == {None}


def test_report_of_other_settings_is_not_restored(tmp_path: Path) -> None:
    fill(report_in(tmp_path))
    other = load_config([f"output_dir={tmp_path}", "algorithm/loss=cispo"])
    assert not RunReport(other, tmp_path, 0).restore("before", 0)


def test_report_of_other_questions_is_not_restored(tmp_path: Path) -> None:
    fill(report_in(tmp_path))
    resumed = report_in(tmp_path, resumed_step=0)
    resumed.tasks = [Task(f"t{number}", "?", "kb", {"d": 1.0}) for number in range(20)]
    assert resumed.restore("before", 0)
    resumed.tasks = resumed.tasks[:19]
    assert not resumed.restore("before", 0)


def test_report_not_made_is_not_restored(tmp_path: Path) -> None:
    assert not report_in(tmp_path).restore("before", 0)


def test_report_finished_writes_page_and_markdown_with_the_episodes(tmp_path: Path) -> None:
    report = report_in(tmp_path)
    fill(report)
    report.tasks = [Task("t0", "Where is the <b>pump</b>?", "kb", {"d1": 1.0}, dataset="kb")]
    for name, ranking in (("before", []), ("after", ["d1"])):
        played = Trajectory("x", "t0", "g", [Turn([1], [2], [0.0], [0], text="bm25_search: pump")], Outcome.FINISHED)
        played.ranking = ranking
        views = first_views(report.tasks, [played])
        report.add(name, report.serving_temperature, records([0.2, 0.4] * 10), 0, views)
    report.add_validation(0, [0.1, 0.5, 0.3])
    report.add_alarms(4, ["queries hardly differ"])
    history = [{"step": s, "rollout/reward/mean": 0.1 * s, "staleness/age_max": 0.0} for s in (1, 2)]
    paths = report.finish({}, history, 1.0)
    assert [path.name for path in paths] == ["report.json", "report.md", "report.html"]
    page = paths[2].read_text()
    assert "step 4: queries hardly differ" in page
    assert "bm25_search: pump" in page
    assert "<b>pump" not in page
    assert "after - before" in paths[1].read_text()
    written = json.loads(paths[0].read_text())
    assert written["evaluation"]["systems"]["after"]["datasets"]["kb"]["measures"]["searches"]["mean"] == 2
    assert written["validations"][0]["step"] == 0


def test_report_finished_shows_the_greedy_comparison_beside_that_of_the_serving_temperature(tmp_path: Path) -> None:
    report = report_in(tmp_path)
    fill(report)
    _, markdown, page = report.finish({}, [], 1.0)
    _, _, table = markdown.read_text().partition("## At other temperatures")
    paired = json.loads((tmp_path / "report.json").read_text())["greedy"]["paired"]
    row = next(line for line in table.splitlines() if line.startswith("| after - before | greedy | 20 | "))
    assert f"| {paired['ndcg@10']:+.3f} [" in row
    assert any(line.startswith("| after - control | greedy |") for line in table.splitlines())
    assert "<h2>At other temperatures</h2>" in page.read_text()


def test_report_of_one_temperature_has_no_section_for_others(tmp_path: Path) -> None:
    report = report_in(tmp_path, "evaluation.temperatures=[1.0]")
    fill(report)
    _, markdown, page = report.finish({}, [], 1.0)
    assert "other temperatures" not in markdown.read_text() + page.read_text()


def test_report_shows_the_alarms_of_collapsed_groups_in_every_file(tmp_path: Path) -> None:
    report = report_in(tmp_path, "tracking=none")
    fill(report)
    call = ToolCall("bm25_search", {"query": "pump"}, found_ids=("d1", "d2"))
    turns = [Turn([], [], [], [], text="bm25_search: pump", tool_calls=[call], observations=["o"]) for _ in range(2)]
    collapsed = Trajectory("x", "t", "g", turns, Outcome.FINISHED, 1.0, ranking=["d1", "d2"])
    stage = AlarmStage("recall@10", report, RunTracker(report.config, tmp_path), EventLog())
    stage.after_step({"g": [collapsed, collapsed]}, 7)
    for step, mean in ((0, 0.30), (10, 0.31), (20, 0.29)):
        report.add_validation(step, [mean - 0.05, mean, mean + 0.05] * 8)
    history = [{"step": float(s), "rollout/reward/mean": 0.02 * s, "staleness/age_max": 0.0} for s in range(1, 21)]
    stage.after_validation(history, 20)
    paths = report.finish({}, history, 1.0)
    alarms = [
        "step 7: 100% of the rewarded rankings are copied from one search as it stood",
        "step 7: 100% of the later searches show nothing new",
        "step 7: queries hardly differ within a group (variety 0.00)",
        "step 7: in 100% of the groups all episodes are the same, word for word",
        "step 20: the reward rose by 0.28 while recall@10 went from 0.300 to 0.290",
    ]
    assert json.loads(paths[0].read_text())["alarms"] == alarms
    for path in paths[1:]:
        assert [alarm for alarm in alarms if alarm not in path.read_text()] == []


def test_report_validation_of_one_value_is_not_certain_and_a_tiny_rise_stays_flat(tmp_path: Path) -> None:
    report = report_in(tmp_path, "tracking=none")
    for step, last in ((0, 0.0), (10, 0.0), (20, 1.0)):
        report.add_validation(step, [0.0] * 39 + [last])
    assert report.validations[0]["high"] == pytest.approx(1 - 0.025 ** (1 / 40))
    rewards = [(float(step), 0.05 * step) for step in range(21)]
    alarm = flat_metric_alarm(rewards, report.validations, "recall@10")
    assert alarm == "the reward rose by 0.70 while recall@10 went from 0.000 to 0.025"
    own = report_in(tmp_path / "own", "tracking=none", "evaluation.external_metric=os.path:join")
    own.add_validation(0, [7.0, 7.0])
    assert (own.validations[0]["low"], own.validations[0]["high"]) == (7.0, 7.0)


def test_report_validations_of_a_resumed_run_go_on_and_replace_the_undone(tmp_path: Path) -> None:
    report = report_in(tmp_path)
    for step in (0, 4, 8):
        report.add_validation(step, [0.1 * step, 0.2])
    assert [entry["step"] for entry in report_in(tmp_path, resumed_step=8).validations] == [0, 4, 8]
    resumed = report_in(tmp_path, resumed_step=3)
    assert [entry["step"] for entry in resumed.validations] == [0]
    resumed.add_validation(4, [0.9, 0.9])
    assert [entry["step"] for entry in resumed.validations] == [0, 4]
    assert resumed.validations[1]["mean"] == 0.9


def test_report_alarms_of_a_resumed_run_are_kept_but_for_those_of_redone_steps(tmp_path: Path) -> None:
    report = report_in(tmp_path)
    report.add_alarms(4, ["searches show nothing new"])
    report.add_alarms(8, ["queries hardly differ"])
    report.add_alarms(8, ["the reward rose"])
    assert report_in(tmp_path, resumed_step=8).alarms == report.alarms
    resumed = report_in(tmp_path, resumed_step=4)
    assert resumed.alarms == ["step 4: searches show nothing new"]
    resumed.add_alarms(8, ["queries hardly differ"])
    resumed.add_alarms(8, ["the reward rose again"])
    alarms = ["step 4: searches show nothing new", "step 8: queries hardly differ", "step 8: the reward rose again"]
    assert resumed.alarms == report_in(tmp_path, resumed_step=8).alarms == alarms
    fill(resumed)
    written = json.loads(resumed.finish({}, [], 1.0)[0].read_text())
    assert written["alarms"] == alarms
    assert report_in(tmp_path, "algorithm/loss=cispo", resumed_step=8).alarms == []
