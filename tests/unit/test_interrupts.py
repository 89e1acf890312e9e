"""Ctrl-C ends a command with the exit code that it chose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, signal, sys
from rl_cluster.interrupts import interrupt
signal.signal(signal.SIGINT, interrupt)
try:
    exec("os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass")
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_interrupt_within_code_made_from_a_string_ends_with_the_exit_code_that_the_command_chose(
    tmp_path: Path,
) -> None:
    (tmp_path / "stopped_program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    ended = subprocess.run([sys.executable, "-m", "stopped_program"], env=environment, timeout=60)
    assert ended.returncode == 130
