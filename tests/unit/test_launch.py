"""What the launcher submits, and what it makes of a cluster that breaks off, of Ctrl-C and of a port that is taken."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.job_submission import JobStatus

from rl_cluster import launch
from rl_cluster.errors import ClusterError
from rl_cluster.launch import run_job

BROKEN = RuntimeError("WebSocket connection closed unexpectedly with close code 1006")


class Client:
    """A cluster's job API. `tails`: what the log's followers get, one after another; the job ends with the last of them."""

    def __init__(self, *tails: list[str | BaseException], exit_code: int = 0) -> None:
        self.tails = list(tails)
        self.exit_code = exit_code
        self.status: JobStatus | None = None
        self.submitted: list[dict[str, Any]] = []
        self.refusals: list[BaseException] = []
        self.stops = 0
        self.log = ""

    def submit_job(self, **arguments: Any) -> None:
        self.submitted.append(arguments)
        if self.refusals:
            raise self.refusals.pop(0)
        self.status = JobStatus.RUNNING

    def get_job_logs(self, job: str) -> str:
        return self.log

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for part in self.tails.pop(0):
            if isinstance(part, BaseException):
                raise part
            yield part
        self.status = JobStatus.FAILED if self.exit_code else JobStatus.SUCCEEDED

    def get_job_info(self, job: str) -> SimpleNamespace:
        return SimpleNamespace(status=self.get_job_status(job), driver_exit_code=self.exit_code, message="")

    def get_job_status(self, job: str) -> JobStatus:
        if self.status is None:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist.")
        return self.status

    def stop_job(self, job: str) -> None:
        self.stops += 1
        self.status = JobStatus.STOPPED


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "POLL_S", 0.0)


def test_run_job_submitted_environment_gives_a_stopped_job_its_time() -> None:
    """Ray reads the time in the job's environment, and gives it 3 s where it stands in neither that nor the head's."""
    client = Client(["done\n"])
    assert run_job(client, "run-1", "python -m rl_cluster.train") == 0
    submission = client.submitted[0]
    assert (submission["submission_id"], submission["entrypoint"]) == ("run-1", "python -m rl_cluster.train")
    assert submission["runtime_env"]["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "20"}


def test_run_job_agent_that_comes_up_late_is_asked_again_for_the_same_job() -> None:
    client = Client(["done\n"])
    client.refusals = [RuntimeError("Request failed with status code 500: No available agent to submit job")]
    assert run_job(client, "run-1", "x") == 0
    assert [submission["submission_id"] for submission in client.submitted] == ["run-1", "run-1"]


def test_run_job_refused_submission_is_one_sentence() -> None:
    client = Client()
    client.refusals = [RuntimeError("Request failed with status code 400: bad runtime_env.\nTraceback")]
    with pytest.raises(ClusterError, match=r"^The cluster did not take the job: Request .* bad runtime_env\.$"):
        run_job(client, "run-1", "x")


def test_run_job_log_that_breaks_off_is_followed_again_to_the_jobs_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Client(["one\ntw", BROKEN], ["one\n", "two\n", BROKEN], ["one\ntwo\nth", "ree\n"], exit_code=3)
    assert run_job(client, "run-1", "x") == 3
    assert capsys.readouterr().out == "one\ntwo\nthree\n"


def test_run_job_cluster_that_answers_no_more_is_an_error_that_names_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(job: str) -> None:
        raise ConnectionError("Connection refused")

    client = Client(["one\n", BROKEN])
    monkeypatch.setattr(client, "get_job_info", refuse)
    monkeypatch.setattr(launch, "LOST_TIMEOUT_S", 0.0)
    with pytest.raises(
        ClusterError, match=r"no answer about job run-1 .*Connection refused.*`ray job status run-1`\.$"
    ):
        run_job(client, "run-1", "x")


def test_run_job_interrupted_while_it_is_followed_stops_the_job_and_shows_its_last_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Client(["one\n", KeyboardInterrupt()])
    client.log = "one\nstopped before the first checkpoint\n"
    assert run_job(client, "run-1", "x") == 130
    assert client.stops == 1
    assert capsys.readouterr().out == "one\nstopping the job on the cluster\nstopped before the first checkpoint\n"


def test_run_job_interrupted_submission_that_arrives_later_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.refusals = [KeyboardInterrupt()]
    asked = []

    def status(job: str) -> JobStatus:
        asked.append(job)
        if len(asked) == 3:
            client.status = JobStatus.PENDING
        return Client.get_job_status(client, job)

    monkeypatch.setattr(client, "get_job_status", status)
    assert run_job(client, "run-1", "x") == 130
    assert client.stops == 1
    assert client.status is JobStatus.STOPPED


def test_run_job_log_that_breaks_as_the_job_ends_is_printed_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client(["step 1\n", RuntimeError("closed abnormally")], exit_code=2)
    client.log = "step 1\nerror: the model is gone\n"
    monkeypatch.setattr(client, "get_job_status", lambda job: JobStatus.FAILED)
    assert run_job(client, "run-1", "x") == 2
    assert capsys.readouterr().out == client.log


def test_run_job_cluster_that_cannot_be_reached_is_one_sentence() -> None:
    client = Client()
    client.refusals = [ConnectionResetError("Connection reset by peer")]
    with pytest.raises(ClusterError, match=r"^The cluster did not take the job: Connection reset by peer\.$"):
        run_job(client, "run-1", "x")


def test_run_job_interrupted_submission_that_never_arrives_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.refusals = [KeyboardInterrupt()]
    monkeypatch.setattr(launch, "APPEAR_TIMEOUT_S", 0.0)
    assert run_job(client, "run-1", "x") == 130
    assert client.stops == 0


def test_run_job_that_does_not_stop_is_an_error_that_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    client, told = Client([KeyboardInterrupt()]), []
    monkeypatch.setattr(client, "stop_job", told.append)
    monkeypatch.setattr(launch, "STOP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(launch, "POLL_S", 0.01)
    with pytest.raises(ClusterError, match=r"^Job run-1 did not end .*; stop it with `ray job stop run-1`\.$"):
        run_job(client, "run-1", "x")
    assert len(told) > 1


def test_start_head_dashboard_port_in_use_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda *arguments, **options: started.append(arguments))
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        monkeypatch.setattr(launch, "DASHBOARD_PORT", port)
        with pytest.raises(ClusterError, match=rf"^Port {port} of this machine.*Address already in use.*; stop the"):
            launch._start_head(None)
    assert not started


def test_start_head_that_ends_by_itself_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = tmp_path / "tries"
    (tmp_path / "ray").write_text(f"#!/bin/sh\necho tried >> {tries}\necho raylet died\nexit 1\n")
    (tmp_path / "ray").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(launch, "DASHBOARD_PORT", port)
    with pytest.raises(ClusterError, match=r"^A local Ray head did not start: raylet died \(all of it: .*\)\.$"):
        launch._start_head(None)
    assert tries.read_text() == "tried\n" * 2
    assert capsys.readouterr().out == "A local Ray head did not start; trying once more\n"
