"""Whether an output folder can be made and written."""

from __future__ import annotations

from pathlib import Path

from rl_cluster.own_folder import folder_problem


def test_folder_problem_new_folder_has_none_and_is_not_made(tmp_path: Path) -> None:
    assert folder_problem(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []


def test_folder_problem_below_a_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert folder_problem(tmp_path / "file" / "b") == f"{tmp_path / 'file'} is no folder"


def test_folder_problem_where_nobody_can_write_is_named() -> None:
    assert (folder_problem(Path("/proc/rl_cluster")) or "").startswith("/proc: ")
