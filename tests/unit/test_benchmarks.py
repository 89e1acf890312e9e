"""Benchmarks in a small size end with one line of JSON that has the figures their docstrings name."""

from __future__ import annotations

import fnmatch
import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sequences", "--trajectories 64"),
        ("evaluation", "--studies 20 --documents 2000"),
        ("search", "--docs 2000 --no-service --questions 20 --reference-docs 2000"),
    ],
)
def test_benchmark_small_size_ends_with_the_figures_that_its_docstring_names(name: str, options: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    named = re.findall(r"`([a-z0-9_*]+)`:", importlib.import_module(f"benchmarks.{name}").__doc__ or "")
    assert named
    assert [pattern for pattern in named if not fnmatch.filter(figures, pattern)] == []
    assert [key for key, value in figures.items() if not math.isfinite(value)] == []
