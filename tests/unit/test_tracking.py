"""Tracking on a temporary SQLite file: what is written, what is redacted, and that no failure reaches the training."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn, TurnTimes
from rl_cluster.errors import ConfigError, Outcome
from rl_cluster.tracking.mlflow_tracker import REDACTED, Tracker

SECRET = "hunter2-hunter2"
START = 1_700_000_000.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Making the tables takes seconds; the tests share one file and use an experiment each."""
    return f"sqlite:///{tmp_path_factory.mktemp('tracking')}/mlflow.db"


def client_of(database: str) -> Any:
    import mlflow  # takes seconds, which a run of other tests need not wait for

    return mlflow.MlflowClient(database)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", SECRET)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def episode(name: str, outcome: Outcome = Outcome.FINISHED) -> Trajectory:
    times = TurnTimes(queue_s=0.5, prefill_s=0.5, decode_s=1.0, tool_s=2.0)
    search = Turn([1, 2], [3, 4], [-0.5, -0.5], [0, 1], tool_calls=[ToolCall("lexical", {"query": f"x {SECRET}"})])
    search.observations, search.times, search.started_at = ["found"], times, START + 1
    answer = Turn([1, 2, 3, 4, 5], [6], [-0.5], [1], text="done", started_at=START + 5, times=times)
    return Trajectory(
        name, "task", "0:task", [search, answer], outcome, reward=0.5, started_at=START, finished_at=START + 9
    )


def test_tracker_run_holds_params_metrics_and_artifact(database: str, tmp_path: Path) -> None:
    tracker = Tracker(database, "plain", "run-1", {"lr": 1e-5, "model": {"name": "m", "flag": False, "auth": SECRET}})
    tracker.log_metrics({"rollout/reward/mean": 0.25, "val/ndcg@10": 0.5}, step=3)
    report = tmp_path / "report.txt"
    report.write_text("fine")
    tracker.log_artifact(report)
    assert tracker.finish("FINISHED") == 0
    client = client_of(database)
    run = client.get_run(tracker.run_id)
    assert run.info.run_name == "run-1"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "1e-05", "model.name": "m", "model.flag": "False", "model.auth": REDACTED}
    assert run.data.metrics == {"rollout/reward/mean": 0.25, "val/ndcg_at_10": 0.5}
    assert client.get_metric_history(tracker.run_id, "rollout/reward/mean")[0].step == 3
    assert [entry.path for entry in client.list_artifacts(tracker.run_id)] == ["report.txt"]


def test_tracker_traces_write_failures_first_with_recorded_times(database: str) -> None:
    tracker = Tracker(database, "traces", "run", {})
    trajectories = [episode("good-0"), episode("good-1"), episode("bad", Outcome.TURN_LIMIT)]
    left = tracker.log_traces(trajectories, step=7, limit=2, decode=lambda ids: " ".join(map(str, ids)))
    assert left == 1
    assert tracker.finish() == 0
    traces = client_of(database).search_traces(locations=[tracker.experiment_id])
    by_id = {trace.data.spans[0].attributes["trajectory_id"]: trace for trace in traces}
    assert set(by_id) == {"bad", "good-0"}
    assert by_id["bad"].info.tags["outcome"] == "turn_limit"
    spans = {span.name: span for span in by_id["bad"].data.spans}
    assert set(spans) == {"episode", "turn 0", "turn 1", "lexical"}
    assert spans["turn 0"].parent_id == spans["episode"].span_id
    assert spans["lexical"].parent_id == spans["turn 0"].span_id
    seconds = {
        name: (span.start_time_ns / 1e9 - START, (span.end_time_ns or 0) / 1e9 - START) for name, span in spans.items()
    }
    assert seconds["episode"] == pytest.approx((0, 9), abs=1e-3)
    assert seconds["turn 0"] == pytest.approx((1, 5), abs=1e-3)
    assert seconds["lexical"] == pytest.approx((3, 5), abs=1e-3)
    assert spans["turn 1"].inputs["new_prompt"] == "5"
    assert spans["lexical"].inputs == {"query": f"x {REDACTED}"}
    assert spans["lexical"].outputs == {"found": []}
    assert spans["turn 0"].outputs["observation"] == "found"


def test_tracker_resumed_goes_on_in_its_run(database: str) -> None:
    first = Tracker(database, "resumed", "run", {"max_steps": 2})
    first.log_metrics({"reward": 0.1}, 1)
    assert first.finish("KILLED") == 0
    again = Tracker(database, "resumed", "run", {"max_steps": 3}, resume=first.run_id)
    again.log_metrics({"reward": 0.2}, 2)
    client = client_of(database)
    assert client.get_run(first.run_id).info.status == "RUNNING"
    assert again.finish() == 0
    run = client.get_run(first.run_id)
    assert again.run_id == first.run_id
    assert run.info.status == "FINISHED"
    assert run.data.params == {"max_steps": "2"}
    assert [entry.step for entry in client.get_metric_history(first.run_id, "reward")] == [1, 2]


def test_tracker_resumed_without_its_run_begins_a_new_one(database: str) -> None:
    tracker = Tracker(database, "resumed", "run", {"max_steps": 3}, resume="0" * 32)
    assert tracker.finish() == 0
    assert client_of(database).get_run(tracker.run_id).data.params == {"max_steps": "3"}


def test_tracker_file_with_a_secret_is_refused_and_counted(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(database, "secrets", f"run {SECRET}", {})
    leak = tmp_path / "leak.txt"
    # Across the edge of two blocks of the scan.
    leak.write_bytes(b"x" * (2**20 - 4) + SECRET.encode() + b"y" * 100)
    tracker.log_artifact(leak)
    with caplog.at_level(logging.WARNING):
        assert tracker.finish() == 1
    assert "leak.txt contains the value of a secret" in caplog.text
    assert SECRET not in caplog.text
    assert tracker.losses.startswith("1 writes to MLflow are lost; the first: artifact: ")
    assert "leak.txt contains" in tracker.losses
    assert SECRET not in tracker.losses
    assert client_of(database).list_artifacts(tracker.run_id) == []
    assert SECRET.encode() not in Path(database.removeprefix("sqlite:///")).read_bytes()


def test_tracker_failing_store_is_counted_and_raises_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(database, "failing", "run", {})

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(f"disk full at {SECRET}")

    monkeypatch.setattr(tracker._client, "log_batch", refuse)
    with caplog.at_level(logging.WARNING):
        for step in range(9):
            tracker.log_metrics({"a": 1.0}, step)
        assert tracker.finish("FAILED") >= 9
    assert caplog.text.count("disk full") == 5
    assert SECRET not in caplog.text
    assert client_of(database).get_run(tracker.run_id).info.status == "FAILED"


def test_tracker_trace_that_mlflow_loses_silently_is_counted(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracing.client import TracingClient

    tracker = Tracker(database, "lost", "run", {})

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(TracingClient, "start_trace", refuse)
    monkeypatch.setattr(TracingClient, "log_spans", refuse)
    assert tracker.log_traces([episode("e")], 0, 5) == 0
    assert tracker.finish() == 1


def test_tracker_hanging_store_full_queue_and_deadline_are_counted(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 10: neither a write nor the end of the run waits for ever."""
    tracker = Tracker(database, "hanging", "run", {}, queue_size=2, close_deadline_s=0.2)
    release, entered = threading.Event(), threading.Event()

    def hang(*args: object, **kwargs: object) -> None:
        entered.set()
        release.wait(30)

    monkeypatch.setattr(tracker._client, "log_batch", hang)
    tracker.log_metrics({"a": 1.0}, 0)
    assert entered.wait(10)
    assert tracker.log_traces([episode(str(i)) for i in range(5)], 0, 5) >= 3
    failed = tracker.num_failed_writes
    assert failed >= 3
    assert tracker.finish() > failed
    assert "the queue is full" in tracker.losses
    release.set()


def test_tracker_after_finish_counts_and_raises_nothing(database: str) -> None:
    tracker = Tracker(database, "late", "run", {})
    assert tracker.finish() == 0
    assert tracker.losses == ""
    tracker.log_metrics({"a": 1.0}, 0)
    assert tracker.num_failed_writes == 1
    assert tracker.finish() == 1


@pytest.mark.parametrize("content", [b"", b"this is no database, though it is long enough to be taken for one" * 20])
def test_tracker_unusable_store_raises_config_error(tmp_path: Path, content: bytes) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(content)
    uri = f"sqlite:///{blocked}" if content else f"sqlite:///{blocked}/mlflow.db"
    with pytest.raises(ConfigError, match=r"tracking\.uri=sqlite:///.*file.*tracking\.enabled=false"):
        Tracker(uri, "x", "run", {})


def test_tracker_prints_nothing(database: str, capfd: pytest.CaptureFixture[str]) -> None:
    tracker = Tracker(database, "quiet", "run", {"a": 1})
    tracker.log_metrics({"a": 1.0}, 0)
    tracker.log_traces([episode("e")], 0, 5)
    assert tracker.finish() == 0
    assert capfd.readouterr() == ("", "")
