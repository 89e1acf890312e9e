"""The variables that a rollout worker and a learner rank start with."""

import os
import platform
import subprocess
from typing import Any

import pytest

from actors.run_parts import learner_options, worker_options
from tests.helpers.configuration import load_config

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
