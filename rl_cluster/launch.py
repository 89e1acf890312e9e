"""Submits the main job to a Ray cluster and follows it: `python -m rl_cluster.launch experiment=quickstart`.

A local head is started when no cluster answers, and stopped again afterwards; one that already ran is left as it is.
Ctrl-C stops the job on the cluster before this command ends. The exit code is the job's.
"""

from __future__ import annotations

import asyncio
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

from rl_cluster.errors import ClusterError, RLClusterError

DASHBOARD_PORT = 8265
START_TIMEOUT_S = 120.0
STOP_WAIT_S = 20
AGENT_TIMEOUT_S = 60.0
HEAD_ENVIRONMENT = {
    # Ray kills a stopped job after this time; a run needs a little longer than the default of 3 s to end cleanly.
    "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S),
    # Ray's workers run at a low priority unless told otherwise, so that any other program on the machine starves the job.
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


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
    from ray.job_submission import JobStatus, JobSubmissionClient

    # Ray's client would list every file that it leaves out of the upload; its errors are exceptions.
    logging.disable(logging.WARNING)
    client = JobSubmissionClient(address)
    root = Path(__file__).resolve().parent.parent
    entrypoint = shlex.join(["python", "-m", "rl_cluster.train", *overrides])
    print(f"ray job submit --address {address} --working-dir . -- {entrypoint}", flush=True)
    job = _submitted(client, entrypoint, run_name, root)
    try:
        asyncio.run(_follow(client, job))
    except KeyboardInterrupt:
        print("stopping the job on the cluster", flush=True)
        client.stop_job(job)
        deadline = time.monotonic() + STOP_WAIT_S + 5
        while not client.get_job_status(job).is_terminal() and time.monotonic() < deadline:
            time.sleep(0.5)
        return 130
    info = client.get_job_info(job)
    if info.status is JobStatus.SUCCEEDED:
        return 0
    if info.driver_exit_code is None:
        print(f"error: job {job} ended as {info.status}: {info.message}", file=sys.stderr)
    return info.driver_exit_code or 1


def _submitted(client: Any, entrypoint: str, run_name: str, root: Path) -> str:
    """Submits the job; the agent that starts jobs comes up a little after the dashboard."""
    deadline = time.monotonic() + AGENT_TIMEOUT_S
    while True:
        try:
            return client.submit_job(
                entrypoint=entrypoint,
                submission_id=f"{run_name}-{uuid.uuid4().hex[:8]}",
                runtime_env={"working_dir": str(root), "excludes": [".venv", "tests", "benchmarks/results"]},
            )
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise ClusterError(f"The cluster did not take the job: {str(error).splitlines()[0]}") from error
            time.sleep(1.0)


async def _follow(client: Any, job: str) -> None:
    async for lines in client.tail_job_logs(job):
        print(lines, end="", flush=True)
    while not client.get_job_status(job).is_terminal():
        await asyncio.sleep(0.5)


def _start_head(object_store_gib: float | None) -> subprocess.Popen[bytes]:
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
            if head.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(
                    f"A local Ray head did not come up within {START_TIMEOUT_S:.0f} s: {_last_line(log)} (all of it: {log})."
                )
            time.sleep(0.5)
    except BaseException:
        # Whatever ends the waiting, Ctrl-C included: the head is ours and must not outlive this process.
        _stop_head(head)
        raise
    return head


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
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    """Entry point of `make train`; SIGTERM is treated as Ctrl-C, and so is SIGINT where a shell started this in the background
    and had it ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(launch(sys.argv[1:]))
    except RLClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
