"""A Ray of a command's own is tried once more where it does not come up in time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from actors.own_ray import start_own_ray
from rl_cluster.errors import ClusterError


def test_start_own_ray_first_try_fails_leaves_no_process_and_the_second_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = subprocess.Popen(["sleep", "60"])
    left: list[subprocess.Popen[bytes]] = []

    def start(**settings: object) -> None:
        assert settings == {"address": "local", "include_dashboard": False, "num_cpus": 1}
        if not left:
            left.append(subprocess.Popen(["sleep", "60"]))
            raise Exception("The node timed out.\nMore of it.")

    monkeypatch.setattr("ray.init", start)
    said: list[str] = []
    try:
        start_own_ray(said.append, num_cpus=1)
        assert said == ["Ray did not start on this machine (The node timed out); trying once more"]
        assert left[0].wait(timeout=10) == -9
        assert before.poll() is None
    finally:
        before.kill()
        before.wait()


def test_start_own_ray_that_never_starts_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**settings: object) -> None:
        raise RuntimeError("No disk.")

    monkeypatch.setattr("ray.init", start)
    with pytest.raises(ClusterError, match=r"^Ray did not start on this machine \(No disk\); let it come to rest"):
        start_own_ray(lambda said: None)


def test_start_own_ray_setting_that_ray_refuses_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**settings: object) -> None:
        raise ValueError("The object store is larger than the memory.")

    monkeypatch.setattr("ray.init", start)
    said: list[str] = []
    with pytest.raises(ClusterError, match=r"^Ray refuses to start on this machine: The object store is larger"):
        start_own_ray(said.append)
    assert said == []


def test_start_own_ray_process_that_ended_meanwhile_does_not_keep_the_second_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[object] = []

    def start(**settings: object) -> None:
        tries.append(settings)
        if len(tries) == 1:
            raise Exception("late")

    class Gone:
        def kill(self) -> None:
            raise psutil.NoSuchProcess(1)

    found = iter([[], [Gone()]])
    monkeypatch.setattr("ray.init", start)
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: next(found))
    start_own_ray(lambda said: None)
    assert len(tries) == 2


def test_leave_own_ray_child_that_ignores_sigterm_is_ended_and_no_thread_or_exit_hook_is_waited_for(
    tmp_path: Path,
) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    program = tmp_path / "program.py"
    program.write_text(
        "import atexit, subprocess, sys, threading\n"
        "from actors import own_ray\n"
        "own_ray._END_S = 0.2\n"
        f"child = subprocess.Popen([sys.executable, '-c', {stubborn!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "atexit.register(print, 'asked Ray')\n"
        "print(child.pid)\n"
        "own_ray.leave_own_ray(7)\n"
    )
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": "."}
    )
    assert ended.returncode == 7, ended.stderr
    assert "asked Ray" not in ended.stdout
    child = int(ended.stdout)  # who has nobody to reap it stays in the list
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
