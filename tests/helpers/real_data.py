"""Published collections for tests, which are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("RL_CLUSTER_TEST_DATA", ROOT.parent / "shared" / "data"))


def folder(name: str) -> Path:
    """Skips the test where the collection is not there."""
    found = DATA / name
    if not found.is_dir():
        pytest.skip(f"{found} is not there; set RL_CLUSTER_TEST_DATA to a folder that holds {name}")
    return found
