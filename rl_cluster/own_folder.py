"""An output folder that one process at a time writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rl_cluster.errors import ClusterError, OutputError


@contextlib.contextmanager
def own_folder(folder: Path, what: str) -> Iterator[None]:
    """Makes the folder and holds it for this process; the lock is the process's and cannot be left over. `what`: job, evaluation.

    Raises ClusterError where another process holds it, OutputError where it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise OutputError(
            f"output_dir={folder} cannot be written ({error.strerror or error}); choose another folder, or allow writing there."
        ) from error
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
