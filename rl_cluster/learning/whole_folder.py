"""Folders that are written beside their place and take it when whole.

Invariant: under its name a folder is whole, whenever the process ends; where it ended between two names, `recover` gives the former
folder its name back.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def put_in_place(partial: Path, final: Path) -> None:
    """Gives `partial` the name `final`, in place of a folder that has it. Returns when that and all its files are on disk."""
    for path in [*partial.rglob("*"), partial]:
        _flush(path)
    former = _former(final)
    if former.exists():
        discard(former)
    if final.exists():
        final.rename(former)
    partial.rename(final)
    _flush(final.parent)
    if former.exists():
        discard(former)


def recover(final: Path) -> None:
    """Gives a folder its name back that was to be replaced when the process ended."""
    if not final.exists() and _former(final).exists():
        _former(final).rename(final)


def discard(folder: Path) -> None:
    """Removes a folder, and what is left of others beside it that were being removed when a process ended."""
    doomed = folder.with_name(f".{folder.name.removeprefix('.')}.discarded")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    for doomed in folder.parent.glob(".*.discarded"):
        shutil.rmtree(doomed, ignore_errors=True)


def former_folders(root: Path, pattern: str) -> list[Path]:
    """The places of folders whose names match `pattern` that were being replaced."""
    return [root / path.name.removeprefix(".").removesuffix(".former") for path in root.glob(f".{pattern}.former")]


def _flush(path: Path) -> None:
    """Has a file's content, or a folder's list of names, written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _former(final: Path) -> Path:
    return final.with_name(f".{final.name}.former")
