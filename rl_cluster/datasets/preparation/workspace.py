"""A folder that appears whole or not at all, beside its place until it is complete."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from rl_cluster.datasets.preparation.pipeline import FILES
from rl_cluster.errors import ConfigError

ROWS = ".rows"
"""Of the parts: where the rows of a single set's corpus are kept."""


def check_out(out: Path) -> None:
    """Raises ConfigError where `out` holds anything that is no prepared data set: it would be overwritten."""
    if out.is_dir() and any(out.iterdir()):
        strange = sorted(path.name for path in out.iterdir() if path.name not in (*FILES, ".gitignore"))
        if strange or not (out / FILES[-1]).is_file():
            raise ConfigError(
                f"out={out}: it holds {strange[0] if strange else 'files'!r} and is no prepared data set; choose another folder."
            )
    elif out.exists() and not out.is_dir():
        raise ConfigError(f"out={out}: it is a file; choose a folder.")


@contextlib.contextmanager
def workspace(out: Path) -> Iterator[tuple[Path, Path]]:
    """Yields (parts, result): `parts` outlives an interruption, `result` becomes `out` at a clean end.

    Raises ConfigError where another process prepares the same folder.
    """
    check_out(out)
    work = out.with_name(f".{out.name}.partial")
    parts, result = work / "parts", work / "result"
    parts.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"out={out}: another process prepares this folder; wait for it or choose another."
            ) from error
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir()
        try:
            yield parts, result
            if out.exists():
                shutil.rmtree(out)
            result.rename(out)
            shutil.rmtree(parts)
        finally:
            shutil.rmtree(result, ignore_errors=True)
            if not parts.exists() or not _holds_something(parts):
                shutil.rmtree(work, ignore_errors=True)


def _holds_something(parts: Path) -> bool:
    """Whole sets of a mixture, or rows of a corpus (see `kept_rows`); other hidden folders are scratch."""
    return any(not path.name.startswith(".") or any(path.glob("*.arrow")) for path in parts.iterdir())
