"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rl_cluster.errors import OutputError
from rl_cluster.evaluation.files import write_whole


def test_write_whole_disk_that_is_full_keeps_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "evaluations" / "part.json"
    write_whole(path, "first")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"part\.json cannot be written \(No space left on device\); make room"):
        write_whole(path, "second")
    assert [file.name for file in path.parent.iterdir()] == ["part.json"]
    assert path.read_text() == "first"


def test_write_whole_file_in_the_way_of_its_folder_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "evaluations").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        write_whole(tmp_path / "evaluations" / "part.json", "text")


def test_write_whole_half_a_character_costs_itself_alone(tmp_path: Path) -> None:
    write_whole(tmp_path / "part.json", "a\ud800b")
    assert (tmp_path / "part.json").read_text() == "a?b"
