"""One Ray cluster for all tests of this folder, with the environment that `make train` gives a head."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.own_ray import start_own_ray

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    import ray

    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112, Ray reads it in this spelling
    os.environ["RAY_LOG_MONITOR_MANY_FILES_THRESHOLD"] = "0"  # else it lists the logs of all tests ten times a second
    start_own_ray(
        print,
        num_cpus=4,
        object_store_memory=300 << 20,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])}},
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.helpers.tiny_models import write_tiny_model

    return write_tiny_model("smollm2", tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def small_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.helpers.small_data import write_small_tables

    return write_small_tables(tmp_path_factory.mktemp("tables"))
