"""The documents of an index on disk, in the order of their ids.

Texts are read from the file when they are asked for; only their places are mapped. So they take no memory of a process that
serves, however many it shows, and need no library to read. The parts of long texts are kept, since finding them takes a pass
over the whole text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_cluster.datasets.task import Document
from rl_cluster.errors import IndexFormatError
from rl_cluster.retrieval.arrays import load_array
from rl_cluster.retrieval.passages import LONG_TEXT, Passage, passages
from rl_cluster.retrieval.string_table import StringTable

if TYPE_CHECKING:
    from rl_cluster.datasets.corpus import Corpus

_TEXT_FILE = "documents.bin"
_ENDS_FILE = "documents.ends.npy"
# Of the long texts, in ascending order of positions: their positions, where the starts of each one's parts end, the starts.
_PARTS_FILES = ("parts.positions.npy", "parts.ends.npy", "parts.starts.npy")
_BLOCK_ROWS = 4096
_FIELDS = 3  # title, text, metadata as JSON


def in_order(corpus: Corpus) -> Iterator[Document]:
    """All documents in ascending order of their ids."""
    return map(corpus.at, sorted(range(len(corpus)), key=corpus.doc_ids.__getitem__))


def write_documents(folder: Path, documents: Iterable[Document]) -> None:
    """Writes documents that come in ascending order of their ids, so that positions and ids agree in order."""
    ids: list[str] = []
    sizes: list[int] = [0]
    long, ends, starts = [], [0], []
    with (folder / _TEXT_FILE).open("wb") as stream:
        for number, document in enumerate(documents):
            ids.append(document.doc_id)
            fields = (document.title, document.text, json.dumps(document.metadata, ensure_ascii=False))
            for field in fields:
                sizes.append(stream.write(field.encode("utf-8")))
            if len(document.text) > LONG_TEXT:
                long.append(number)
                starts += [part.start for part in passages(document.text)]
                ends.append(len(starts))
    np.save(folder / _ENDS_FILE, np.cumsum(np.array(sizes, np.int64)))
    for name, numbers in zip(_PARTS_FILES, (long, ends, starts), strict=True):
        np.save(folder / name, np.array(numbers, np.int64))
    StringTable.of(ids).save(folder, "ids")


class DocumentStore:
    """What `write_documents` wrote; may be shared between threads."""

    def __init__(self, folder: Path, name: str):
        """`name`: of the corpus. Raises IndexFormatError where a file is missing or damaged."""
        self.name = name
        self._ids = StringTable.load(folder, "ids")
        self._ends = load_array(folder / _ENDS_FILE, np.int64, 1)
        self._long, self._part_ends, self._part_starts = (load_array(folder / n, np.int64, 1) for n in _PARTS_FILES)
        try:
            self._file = (folder / _TEXT_FILE).open("rb", buffering=0)
        except OSError as error:
            raise IndexFormatError(f"{folder}: its texts cannot be read ({error}); build it again.") from error
        size = os.fstat(self._file.fileno()).st_size
        whole = len(self._part_ends) == len(self._long) + 1 and self._part_ends[-1] == len(self._part_starts)
        if not whole or len(self._ends) != _FIELDS * len(self) + 1 or self._ends[-1] != size:
            raise IndexFormatError(f"{folder}: its texts and their places do not fit; delete it and build again.")

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, doc_id: object) -> bool:
        return isinstance(doc_id, str) and self.position(doc_id) is not None

    def __iter__(self) -> Iterator[Document]:
        return (self.at(position) for position in range(len(self)))

    def position(self, doc_id: str) -> int | None:
        """The position of a document, or None where there is no such id."""
        rank = self._ids.find(doc_id)
        return None if rank < 0 else rank

    def id_at(self, position: int) -> str:
        """The id of the document at a position in `[0, len(self))`."""
        return self._ids[position]

    def at(self, position: int) -> Document:
        """The document at a position in `[0, len(self))`."""
        title, text, metadata = self._fields(position, position + 1)
        return Document(doc_id=self._ids[position], title=title, text=text, metadata=json.loads(metadata))

    def shown(self, position: int) -> tuple[str, str, str]:
        """(id, title, text) of the document at a position: what a hit is made of."""
        title, text, _ = self._fields(position, position + 1)
        return self._ids[position], title, text

    def get(self, doc_id: str) -> Document | None:
        """The document with this id, or None."""
        position = self.position(doc_id)
        return None if position is None else self.at(position)

    def kept_parts(self, position: int, text: str) -> list[Passage] | None:
        """The parts (see `passages.passages`) of a long text; None for one that is short enough to be analysed.

        `text`: that of the document at this position.
        """
        if len(text) <= LONG_TEXT:
            return None
        rank = int(np.searchsorted(self._long, position))
        starts = self._part_starts[self._part_ends[rank] : self._part_ends[rank + 1]].tolist()
        return [Passage(number, *pair) for number, pair in enumerate(pairwise([*starts, len(text)]), start=1)]

    def texts(self, start: int = 0, stop: int | None = None) -> list[tuple[str, str]]:
        """(title, text) of the documents at positions `start` to `stop`, the latter left out."""
        fields = self._fields(start, len(self) if stop is None else min(stop, len(self)))
        return list(zip(fields[::_FIELDS], fields[1::_FIELDS], strict=True))

    def metadata(self) -> Iterator[dict[str, Any]]:
        """The metadata of all documents in their order."""
        for start in range(0, len(self), _BLOCK_ROWS):
            yield from map(json.loads, self._fields(start, min(start + _BLOCK_ROWS, len(self)))[2::_FIELDS])

    def _read(self, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop`; Linux gives at most 2 GiB at once."""
        parts = []
        while start < stop and (part := os.pread(self._file.fileno(), stop - start, start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def _fields(self, start: int, stop: int) -> list[str]:
        """All fields of the documents at `start` to `stop`, one after another, in one read."""
        ends = self._ends[_FIELDS * start : _FIELDS * stop + 1].tolist() if stop > start else [0]
        content = self._read(ends[0], ends[-1])
        first = ends[0]
        return [content[a - first : b - first].decode("utf-8") for a, b in pairwise(ends)]
