"""What all tests share: a process for a learner rank, small models, and less of what costs time in every process.

DeepSpeed leaves its mark on the process that it runs in, so a learner rank has a process beside the tests.
What embeds asks MKL for steady products before its first one; here another test may have multiplied before.
The files of hydra_conf are read once in a process, and what was imported is left out of garbage collections.
Every Python process begins with the sitecustomize of helpers/startup.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins

from rl_cluster.models.cpu_matmul import ask_mkl_for_steady_products
from tests.helpers.tiny_learner import Processes, save_tiny_model

STARTUP = str(Path(__file__).parent / "helpers" / "startup")

ask_mkl_for_steady_products()
if STARTUP not in (paths := [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]):
    os.environ["PYTHONPATH"] = os.pathsep.join([STARTUP, *paths])


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _configuration_files_read_once() -> Iterator[None]:
    Plugins.instance()  # registers the kinds of sources
    source_type: Any = SourcesRegistry.instance().types["pkg"]
    read_file = source_type._read_config
    kept: dict[tuple[str, str, Path], bytes] = {}

    def read(source: Any, file: Any) -> Any:
        # Composing changes what it has read, so each time has its own copy, which pickle makes quickest.
        key = (source.path, source.provider, Path(file))
        if key not in kept:
            kept[key] = pickle.dumps(read_file(source, file))
        return pickle.loads(kept[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_type, "_read_config", read)
        yield


@pytest.fixture(scope="session")
def process() -> Iterator[Processes]:
    processes = Processes(1)
    try:
        yield processes
    finally:
        processes.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Model folders, by whether input and output embeddings are tied."""
    root = tmp_path_factory.mktemp("models")
    for tied in (True, False):
        save_tiny_model(root / str(tied), tied)
    return {tied: root / str(tied) for tied in (True, False)}
