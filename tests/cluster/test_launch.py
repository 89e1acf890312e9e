"""`python -m rl_cluster.launch`: a local head, a submitted job, its exit status, and Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_cluster.launch import DASHBOARD_PORT, JOB_ENVIRONMENT, _answers, _start_head, _stop_head
from rl_cluster.learning.checkpoint import checkpoint_folder, checkpoint_steps, read_state
from tests.cluster.conftest import ROOT
from tests.cluster.job_settings import ACTORS, LONG_PROMPTS, WORDS_ALONE, actor_processes, job_overrides, tracked_runs
from tests.cluster.ports import HEAD_SEARCH_PORT
from tests.helpers.tiny_models import write_tiny_model

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

DASHBOARD = f"http://127.0.0.1:{DASHBOARD_PORT}"
AT_ONCE = ("warmup=none", "evaluation.test_at_start=false", WORDS_ALONE)
"""Nothing before the first step."""
ENDLESS = ("training.max_steps=50", "training.max_epochs=30", *AT_ONCE)


def dashboard_answers() -> bool:
    return _answers(DASHBOARD)


def start_launcher(output: Path, overrides: list[str]) -> subprocess.Popen[str]:
    overrides = [*overrides, f"search.port={HEAD_SEARCH_PORT}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with open(output, "w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rl_cluster.launch", *overrides],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def processes_holding(text: str) -> list[str]:
    """Command lines of living processes that name `text`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if text in line and process.pid != os.getpid():
            found.append(line)
    return found


@pytest.mark.skipif(dashboard_answers(), reason="another Ray head owns the dashboard port")
def test_launch_interrupted_stops_job_and_head_within_deadline(tmp_path: Path, small_tables: Path) -> None:
    """With a model of Llama 3's family, which calls tools in its own format."""
    tiny_model = write_tiny_model("llama", tmp_path / "llama")
    log = tmp_path / "launch.log"
    output = tmp_path / "interrupted"
    overrides = job_overrides(
        output, tiny_model, small_tables, *ENDLESS, "rollout.sampling_max_tokens=96", *LONG_PROMPTS
    )
    launcher = start_launcher(log, overrides)
    try:
        deadline = time.monotonic() + 480
        while "checkpoint of step 1" not in log.read_text():
            assert launcher.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        os.kill(launcher.pid, signal.SIGINT)
        # The job has its 20 s, and the head some to end after it.
        assert launcher.wait(timeout=45) == 130
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
    said = log.read_text()
    assert "stopping the job" in said
    assert "stopped; the last checkpoint is kept, and the same command continues from it" in said
    assert not dashboard_answers()
    assert processes_holding(str(output)) == []
    assert last_checkpoint(output) >= 1
    assert [run.info.status for run in tracked_runs(tmp_path)] == ["KILLED"]


def last_checkpoint(output: Path) -> int:
    """The step of the newest checkpoint, which is whole."""
    step = checkpoint_steps(output / "checkpoints")[-1]
    assert read_state(checkpoint_folder(output / "checkpoints", step)).completed_steps == step
    return step


def job_client() -> Any:
    """With the user's token, which a head may ask for: Ray in this process may have begun without one."""
    from ray.job_submission import JobSubmissionClient

    token = Path.home() / ".ray" / "auth_token"
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"} if token.exists() else None
    return JobSubmissionClient(DASHBOARD, headers=headers)


def submitted(client: Any, module: str, arguments: list[str]) -> str:
    """The id of a job that was just submitted from this checkout."""
    environment = {"working_dir": str(ROOT), "excludes": [".venv", "benchmarks/results"], "env_vars": JOB_ENVIRONMENT}
    return client.submit_job(entrypoint=shlex.join(["python", "-m", module, *arguments]), runtime_env=environment)


@pytest.fixture(scope="module")
def head() -> Iterator[None]:
    """A head that somebody else started, as far as the launcher knows."""
    mode = os.environ.get("RAY_AUTH_MODE")
    running = _start_head(1.0)
    try:
        yield
    finally:
        _stop_head(running)
        # A head that asks for a token has set this; the cluster of the other tests knows none.
        if mode is None:
            os.environ.pop("RAY_AUTH_MODE", None)


@pytest.mark.timeout(1500)
@pytest.mark.skipif(dashboard_answers(), reason="another Ray head owns the dashboard port")
def test_launch_on_a_head_that_runs_leaves_it_for_an_evaluation_and_a_job_that_is_stopped_cleanly(
    tmp_path: Path, tiny_model: Path, small_tables: Path, head: None
) -> None:
    whole = job_overrides(tmp_path / "whole", tiny_model, small_tables, "training.max_steps=1", *AT_ONCE)
    launcher = start_launcher(tmp_path / "launch.log", whole)
    try:
        assert launcher.wait(timeout=480) == 0, (tmp_path / "launch.log").read_text()
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
    assert (tmp_path / "whole" / "final" / "model.safetensors").is_file()
    assert dashboard_answers()

    from ray.job_submission import JobStatus

    client = job_client()
    # What the run leaves behind is played by vLLM in a job of its own, here a checkpoint, which is exported first.
    evaluated = tmp_path / "evaluated"
    systems = ["system=[model]", f"systems.model.path={tmp_path / 'whole' / 'checkpoints' / 'step_000001'}"]
    systems += [WORDS_ALONE]
    little = [
        "search.snippet_words=12",
        "rollout.kv_cache_gib=0.125",
        "rollout.sampling_max_tokens=24",
        "rollout.cpu_threads=1",
        "tracking=none",
    ]
    asked = [f"folders=[{small_tables}]", f"output_dir={evaluated}", "evaluation.bootstrap_resamples=1000"]
    job = submitted(client, "rl_cluster.evaluate", [*asked, *systems, *little])
    deadline = time.monotonic() + 480
    while not client.get_job_status(job).is_terminal():
        assert time.monotonic() < deadline, client.get_job_logs(job)
        time.sleep(0.5)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, client.get_job_logs(job)
    played = json.loads((evaluated / "report.json").read_text())["systems"]["model"]["overall"]
    assert played["infrastructure"] == 0
    assert played["tokens"] > 0

    output = tmp_path / "stopped"
    endless = job_overrides(output, tiny_model, small_tables, *ENDLESS, f"search.port={HEAD_SEARCH_PORT}")
    job = submitted(client, "rl_cluster.train", endless)
    deadline = time.monotonic() + 480
    while "checkpoint of step 1" not in client.get_job_logs(job):
        assert not client.get_job_status(job).is_terminal(), client.get_job_logs(job)
        assert time.monotonic() < deadline, client.get_job_logs(job)
        time.sleep(0.5)
    client.stop_job(job)
    deadline = time.monotonic() + 20
    while not client.get_job_status(job).is_terminal():
        assert time.monotonic() < deadline, client.get_job_logs(job)
        time.sleep(0.5)
    assert "the last checkpoint is kept" in client.get_job_logs(job)
    assert [run.info.status for run in tracked_runs(tmp_path)] == ["FINISHED", "KILLED"]
    assert last_checkpoint(output) >= 1
    deadline = time.monotonic() + 15
    while (left := [name for name in ACTORS if actor_processes(name)]) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left == []


@pytest.mark.skipif(dashboard_answers(), reason="another Ray head owns the dashboard port")
def test_launch_that_does_not_fit_is_refused_with_the_table(
    tmp_path: Path, tiny_model: Path, small_tables: Path, head: None
) -> None:
    log = tmp_path / "launch.log"
    overrides = job_overrides(tmp_path / "large", tiny_model, small_tables, "rollout.cpus_per_worker=900")
    launcher = start_launcher(log, overrides)
    try:
        assert launcher.wait(timeout=180) == 2
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
    text = log.read_text()
    assert "missing" in text
    assert "error: The cluster cannot hold the job (see the table): it lacks 900.5 CPU of " in text
    assert not (tmp_path / "large" / "checkpoints").exists()


def test_train_with_ray_address_that_does_not_answer_is_one_sentence(
    tmp_path: Path, tiny_model: Path, small_tables: Path
) -> None:
    overrides = job_overrides(tmp_path / "unreachable", tiny_model, small_tables)
    outcome = subprocess.run(
        [sys.executable, "-m", "rl_cluster.train", *overrides],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert outcome.returncode == 2, outcome.stderr
    assert "No Ray cluster answers at address '127.0.0.1:1'" in " ".join(outcome.stdout.split())


def test_search_port_in_use_is_refused_naming_it() -> None:
    from actors.search_service import check_port
    from rl_cluster.errors import ClusterError

    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        with pytest.raises(ClusterError, match=f"search.port={port} is in use"):
            check_port(port)
