"""The row groups of a corpus file that is being written, kept so that an interrupted conversion goes on after them.

Invariants: a kept row group is whole (it appears by a rename) and says how much of the documents' stream it and those before it
cover; row groups of other inputs or settings are never read. Taken over, they give the same file as a run that was not
interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

_STATE = b"state"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass
class Covered:
    """What the row groups so far hold of the stream: `documents` were added, `merged` of them were reported."""

    documents: int = 0
    merged: Counter[str] = field(default_factory=Counter)


class KeptRows:
    """Belongs to one process; `key` changes with whatever the rows depend on."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        label = folder / "key"
        if not label.is_file() or label.read_text(encoding="utf-8") != key:
            self.discard()
            folder.mkdir(parents=True)
            label.write_text(key, encoding="utf-8")
        self._number = 0

    def read(self) -> Iterator[tuple[pa.Table, Covered]]:
        """The kept row groups in their order; further ones are kept behind them. What a loss of power has cut ends them."""
        while (path := self._path(self._number)).is_file():
            try:
                with pa.memory_map(str(path)) as file:
                    table = pa.ipc.open_file(file).read_all()
                state = json.loads((table.schema.metadata or {})[_STATE])
            except (pa.ArrowInvalid, KeyError):
                return
            self._number += 1
            yield table.replace_schema_metadata(None), Covered(state["documents"], Counter(state["merged"]))

    def keep(self, rows: pa.Table, covered: Covered) -> None:
        """Returns when the row group is on disk."""
        state = json.dumps({"documents": covered.documents, "merged": covered.merged})
        rows = rows.replace_schema_metadata({_STATE: state})
        path = self._path(self._number)
        scratch = path.with_suffix(".partial")
        with pa.OSFile(str(scratch), "wb") as file, pa.ipc.new_file(file, rows.schema, options=_OPTIONS) as writer:
            writer.write_table(rows)
        with open(scratch, "rb") as file:
            os.fsync(file.fileno())
        scratch.rename(path)
        self._number += 1

    def discard(self) -> None:
        """Deletes all of it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.arrow"
