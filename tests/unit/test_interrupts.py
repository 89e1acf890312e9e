"""Ctrl-C ends a command with the exit code that it chose, wherever Python is when it comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys, time, weakref
from rl_cluster.interrupts import raise_on

class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def dropped():
    held = Held()
    del held
    time.sleep(30)

def in_callback():
    class Watched: pass
    watched = Watched()
    kept = weakref.ref(watched, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del watched
    while True: pass

def made_from_string():
    exec("os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass")

raise_on(signal.SIGINT)
try:
    CASE()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("case", ["made_from_string", "dropped", "in_callback"])
def test_interrupt_where_python_loses_or_remembers_it_ends_with_the_exit_code_that_the_command_chose(
    case: str, tmp_path: Path
) -> None:
    (tmp_path / "stopped_program.py").write_text(PROGRAM.replace("CASE", case))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    ended = subprocess.run(
        [sys.executable, "-m", "stopped_program"], env=environment, timeout=20, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (130, "")
