"""The variables that a rollout worker and a learner rank start with."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.run_parts import learner_options, worker_options
from tests.helpers.configuration import load_config

ROOT = Path(__file__).resolve().parents[2]
brings_jemalloc = pytest.mark.skipif(platform.machine() != "x86_64", reason="jemalloc is used on x86_64 only")


def variables_of(options: dict[str, Any]) -> dict[str, str]:
    return options["runtime_env"]["env_vars"]


@brings_jemalloc
def test_learner_allocator_on_a_cpu_accepts_its_settings() -> None:
    variables = variables_of(learner_options(load_config([])))
    process = subprocess.run(["/bin/ls", "/"], env={**os.environ, **variables}, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")  # jemalloc names each setting that it does not know


@brings_jemalloc
def test_freed_pages_on_a_cpu_are_kept_by_the_learner_only() -> None:
    config = load_config([])
    assert "dirty_decay_ms:-1" in variables_of(learner_options(config))["MALLOC_CONF"]
    assert "MALLOC_CONF" not in variables_of(worker_options(config))


def test_allocator_on_a_gpu_is_left_alone() -> None:
    config = load_config(["cluster=gpu", "rollout=gpu", "learner=gpu"])
    for options in (learner_options(config), worker_options(config)):
        assert not {"LD_PRELOAD", "MALLOC_CONF"} & variables_of(options).keys()


KEPT_THEN_GIVEN_BACK = """
import numpy as np
from rl_cluster.learning.freed_pages import give_back_freed_pages

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

give_back_freed_pages()
before = resident_mb()
blocks = [np.ones(1_000_000) for _ in range(50)]
del blocks
kept = resident_mb() - before
give_back_freed_pages()
print(kept, resident_mb() - before)
"""


@pytest.mark.slow
@brings_jemalloc
def test_freed_pages_of_a_learner_on_a_cpu_stay_until_they_are_given_back() -> None:
    variables = variables_of(learner_options(load_config([])))
    environment = {**os.environ, **variables}
    printed = subprocess.run(
        [sys.executable, "-c", KEPT_THEN_GIVEN_BACK],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    kept, left = map(float, printed.stdout.split())
    assert kept > 350  # of 400 MB
    assert left < 50
