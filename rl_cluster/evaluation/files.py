"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from rl_cluster.errors import OutputError


def write_whole(path: Path, text: str) -> None:
    """Returns when the text is on disk, in place of a former file. Its folder is made where it is missing.

    Raises OutputError where it cannot be written; a former file stays as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A lone half of a character may come from a model; it must not cost the file.
        with open(partial, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if path.parent.is_dir():
            partial.unlink(missing_ok=True)
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}); make room, or allow writing there, and repeat the command: what "
            "is written already is kept."
        ) from error
