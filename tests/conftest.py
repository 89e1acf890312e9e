"""A process beside the tests for one learner rank, since DeepSpeed leaves its mark on the process that it runs in.

What embeds asks MKL for steady products before its first one; here another test may have multiplied before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_cluster.models.cpu_matmul import ask_mkl_for_steady_products
from tests.helpers.tiny_learner import Processes, save_tiny_model

ask_mkl_for_steady_products()


@pytest.fixture(scope="module")
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
