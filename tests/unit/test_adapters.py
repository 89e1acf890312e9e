"""The files of adapters that engines have loaded."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from rl_cluster.inference.adapters import _remove_of_the_dead


def test_adapters_of_a_killed_process_are_removed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = 2**22 + 1  # above the highest process id
    left = tmp_path / f"rl_cluster-adapter-{dead}-abc"
    others = [
        tmp_path / f"rl_cluster-adapter-{os.getppid()}-abc",
        tmp_path / "rl_cluster-adapter-notes",
        tmp_path / f"another-{dead}-abc",
    ]
    for folder in (left, *others):
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"")
    _remove_of_the_dead()
    assert sorted(tmp_path.iterdir()) == sorted(others)
