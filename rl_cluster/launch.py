"""Submits the main job to a Ray cluster and follows it: `python -m rl_cluster.launch experiment=quickstart`.

A local head is started when no cluster answers, and stopped again afterwards; one that already ran is left as it is.
Ctrl-C at any time stops the job on the cluster before this command ends. The exit code is the job's.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_cluster.errors import ClusterError, RLClusterError, first_line
from rl_cluster.interrupts import raise_on

DASHBOARD_PORT = 8265
START_TIMEOUT_S = 120.0
STOP_WAIT_S = 20
STOP_TIMEOUT_S = STOP_WAIT_S + 5.0
AGENT_TIMEOUT_S = 60.0
APPEAR_TIMEOUT_S = 5.0
"""How long a job may take to appear on the cluster after its submission was interrupted."""
LOST_TIMEOUT_S = 60.0
"""How long a cluster may give no answer while its job is followed."""
POLL_S = 0.5
JOB_ENVIRONMENT = {
    # Ray kills a stopped job after this time; a run needs a little longer than the default of 3 s to end cleanly. It is read in
    # the job's environment, so that it holds on a head that others started too.
    "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S),
}
HEAD_ENVIRONMENT = {
    # Ray's workers run at a low priority unless told otherwise, so that any other program on the machine starves the job.
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A head that is told to end would wait for requests from elsewhere, which one of a single machine does not get.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}


class _HeadEnded(ClusterError):
    """A head that ended before it answered."""


def launch(overrides: Sequence[str]) -> int:
    """Checks the settings, then submits and follows; returns the job's exit code. Raises ClusterError."""
    from rl_cluster.composition import load_config

    config = load_config(overrides)
    address = os.environ.get("RAY_API_SERVER_ADDRESS", f"http://127.0.0.1:{DASHBOARD_PORT}")
    head: subprocess.Popen[bytes] | None = None
    if not _answers(address):
        if "RAY_API_SERVER_ADDRESS" in os.environ:
            raise ClusterError(
                f"No Ray cluster answers at RAY_API_SERVER_ADDRESS={address}; start it or unset the variable."
            )
        head = _start_head(config.cluster.object_store_gib)
    try:
        return _submit(address, overrides, config.run_name)
    finally:
        if head is not None:
            _stop_head(head)


def _submit(address: str, overrides: Sequence[str], run_name: str) -> int:
    from ray.job_submission import JobSubmissionClient

    # Ray's client would list every file that it leaves out of the upload; its errors are exceptions.
    logging.disable(logging.WARNING)
    try:
        client = JobSubmissionClient(address)
    except (RuntimeError, OSError) as error:
        raise ClusterError(f"No Ray cluster takes jobs at {address}: {first_line(error)}.") from error
    entrypoint = shlex.join(["python", "-m", "rl_cluster.train", *overrides])
    environment = json.dumps({"env_vars": JOB_ENVIRONMENT})
    command = ["ray", "job", "submit", "--address", address, "--working-dir", ".", "--runtime-env-json", environment]
    print(f"{shlex.join(command)} -- {entrypoint}", flush=True)
    return run_job(client, f"{run_name}-{uuid.uuid4().hex[:8]}", entrypoint)


def run_job(client: Any, job: str, entrypoint: str) -> int:
    """Submits a job under the id `job`, follows it to its end and returns its exit code; Ctrl-C at any time stops it (130).

    Raises ClusterError where the cluster does not take the job, gives no answer any more, or does not stop it.
    """
    from ray.job_submission import JobStatus

    log = _Log()
    try:
        _submit_job(client, job, entrypoint)
        info = asyncio.run(_follow(client, job, log))
    except KeyboardInterrupt:
        print("stopping the job on the cluster", flush=True)
        _stop_job(client, job)
        with contextlib.suppress(RuntimeError, OSError):  # there is none of a submission that never arrived
            log.show(client.get_job_logs(job))
        return 130
    if info.status is JobStatus.SUCCEEDED:
        return 0
    if info.driver_exit_code is None:
        print(f"error: job {job} ended as {info.status}: {info.message}", file=sys.stderr)
    return info.driver_exit_code or 1


def _submit_job(client: Any, job: str, entrypoint: str) -> None:
    """The agent that starts jobs comes up a little after the dashboard."""
    root = Path(__file__).resolve().parent.parent
    environment = {
        "working_dir": str(root),
        "excludes": [".venv", "tests", "benchmarks/results"],
        "env_vars": JOB_ENVIRONMENT,
    }
    deadline = time.monotonic() + AGENT_TIMEOUT_S
    while True:
        try:
            client.submit_job(entrypoint=entrypoint, submission_id=job, runtime_env=environment)
            return
        except (RuntimeError, OSError) as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise ClusterError(f"The cluster did not take the job: {first_line(error)}.") from error
            time.sleep(POLL_S)


class _Log:
    """A job's log on the terminal: what comes again, as after a connection that broke, is left out."""

    def __init__(self) -> None:
        self.printed = 0

    def show(self, text: str, start: int = 0) -> None:
        """Prints `text`, which begins at the log's character `start`."""
        print(text[max(0, self.printed - start) :], end="", flush=True)
        self.printed = max(self.printed, start + len(text))


async def _follow(client: Any, job: str, log: _Log) -> Any:
    """Prints the job's log until the job has ended; returns what the cluster says of it."""
    import aiohttp

    lost_since: float | None = None
    while True:
        whole = False
        with contextlib.suppress(RuntimeError, aiohttp.ClientError, ConnectionResetError, TimeoutError):
            read = 0
            async for lines in client.tail_job_logs(job):
                log.show(lines, read)
                read += len(lines)
            whole = True
        try:
            info = client.get_job_info(job)
        except (RuntimeError, OSError) as error:
            now = time.monotonic()
            lost_since = lost_since or now
            if now - lost_since >= LOST_TIMEOUT_S:
                raise ClusterError(
                    f"The cluster gave no answer about job {job} for {LOST_TIMEOUT_S:.0f} s ({first_line(error)}); the job may still run: "
                    f"see `ray job status {job}`."
                ) from error
        else:
            lost_since = None
            if info.status.is_terminal():
                if not whole:  # the last lines, which say how the job ended
                    with contextlib.suppress(RuntimeError, OSError):
                        log.show(client.get_job_logs(job))
                return info
        await asyncio.sleep(POLL_S)


def _stop_job(client: Any, job: str) -> None:
    """Returns when the job has ended, or where its interrupted submission never arrived.

    It is told again until it ends, since a job whose processes are not there yet does not hear it.
    """
    started = time.monotonic()
    said = "it goes on"
    while time.monotonic() - started < STOP_TIMEOUT_S:
        try:
            if client.get_job_status(job).is_terminal():
                return
            client.stop_job(job)
        except (RuntimeError, OSError) as error:
            said = first_line(error)
            if "does not exist" in said and time.monotonic() - started >= APPEAR_TIMEOUT_S:
                return
        time.sleep(POLL_S)
    raise ClusterError(
        f"Job {job} did not end within {STOP_TIMEOUT_S:.0f} s ({said}); stop it with `ray job stop {job}`."
    )


def _start_head(object_store_gib: float | None) -> subprocess.Popen[bytes]:
    """A head that answers; tried once more where it ends by itself, see `actors/own_ray.py`."""
    _check_dashboard_port()
    try:
        return _try_head(object_store_gib)
    except _HeadEnded as error:
        print(f"{error.args[0].partition(':')[0]}; trying once more", flush=True)
        return _try_head(object_store_gib)


def _try_head(object_store_gib: float | None) -> subprocess.Popen[bytes]:
    """A head in the foreground of its own session, so that ending it ends nothing else that Ray runs here."""
    arguments = ["--head", "--block", "--port", str(_free_port()), "--disable-usage-stats"]
    arguments += ["--node-ip-address", "127.0.0.1", "--dashboard-host", "127.0.0.1"]
    arguments += ["--dashboard-port", str(DASHBOARD_PORT)]
    # The agent that starts jobs has a fixed port otherwise, which another Ray on this machine may hold.
    arguments += ["--dashboard-agent-listen-port", str(_free_port())]
    if object_store_gib:
        arguments += ["--object-store-memory", str(int(object_store_gib * (1 << 30)))]
    # The head's PATH is where jobs find `python`, so it must be this environment's.
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
    log = Path(tempfile.gettempdir()) / f"rl_cluster-head-{os.getpid()}.log"
    with open(log, "wb") as output:
        head = subprocess.Popen(
            [str(tools / "ray"), "start", *arguments],
            env={**os.environ, **HEAD_ENVIRONMENT, "PATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(f"http://127.0.0.1:{DASHBOARD_PORT}"):
            if head.poll() is not None:
                raise _HeadEnded(f"A local Ray head did not start: {_last_line(log)} (all of it: {log}).")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"A local Ray head did not come up within {START_TIMEOUT_S:.0f} s: {_last_line(log)} (all of it: {log})."
                )
            time.sleep(0.5)
    except BaseException:
        # Whatever ends the waiting, Ctrl-C included: the head is ours and must not outlive this process.
        _stop_head(head)
        raise
    return head


def _check_dashboard_port() -> None:
    """Ray itself only logs that the port is taken, and goes on without a dashboard."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", DASHBOARD_PORT))
    except OSError as error:
        raise ClusterError(
            f"Port {DASHBOARD_PORT} of this machine, where a Ray head listens for jobs, cannot be used ({error.strerror}); stop the program "
            "that holds it, or set RAY_API_SERVER_ADDRESS to a cluster that runs."
        ) from error


def _stop_head(head: subprocess.Popen[bytes]) -> None:
    head.terminate()
    try:
        head.wait(timeout=STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(head.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _answers(address: str) -> bool:
    """Whether a Ray dashboard is there. One that asks for a token makes this process use the user's."""
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=3) as response:
            return response.status == 200
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            return False
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        return True
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError):
        return False  # ValueError: not an address at all


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    """Entry point of `make train`; SIGTERM is treated as Ctrl-C, and so is SIGINT where a shell started this in the background
    and had it ignored."""
    raise_on(signal.SIGTERM, signal.SIGINT)
    try:
        sys.exit(launch(sys.argv[1:]))
    except RLClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
