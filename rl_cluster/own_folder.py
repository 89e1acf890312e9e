"""An output folder that one process at a time writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rl_cluster.errors import ClusterError, OutputError


def folder_problem(folder: Path) -> str | None:
    """Why a folder cannot be made or written; tried with an empty folder in what exists of its path, which is removed again."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        return f"{'it' if existing == folder.absolute() else existing} is no folder"
    try:
        with tempfile.TemporaryDirectory(prefix=".rl_cluster-", dir=existing):
            return None
    except OSError as error:  # the access rights alone say too much, of the system's own folders for one
        return f"{existing}: {error.strerror or error}"


def check_folder(folder: Path, what: str) -> None:
    """`own_folder`'s errors, as far as they can be seen without making the folder."""
    if problem := folder_problem(folder):
        raise _unwritable(folder, problem)
    if (folder / ".lock").exists():
        with own_folder(folder, what):
            pass


@contextlib.contextmanager
def own_folder(folder: Path, what: str) -> Iterator[None]:
    """Makes the folder and holds it for this process; the lock is the process's and cannot be left over. `what`: job, evaluation.

    Raises ClusterError where another process holds it, OutputError where it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(folder, str(error.strerror or error)) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ClusterError(
                f"output_dir={folder}: another {what} runs in this folder; stop it or choose another run_name."
            ) from error
        yield
    finally:
        os.close(lock)


def _unwritable(folder: Path, why: str) -> OutputError:
    return OutputError(f"output_dir={folder} cannot be written ({why}); choose another folder, or allow writing there.")
