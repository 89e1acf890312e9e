"""Sorted strings in two flat arrays, so that millions of them open in no time and are shared between processes.

A dictionary of a large vocabulary takes seconds to read and hundreds of bytes a word; a binary search in a mapped file
takes microseconds and nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rl_cluster.retrieval.arrays import load_array


class StringTable:
    """Distinct strings in ascending order of their UTF-8 bytes, which is the order of their code points."""

    def __init__(self, blob: np.ndarray, ends: np.ndarray):
        """`blob`: uint8 `[bytes]`, all strings one after another; `ends`: int64 `[strings + 1]`, from 0."""
        self._blob = blob
        self._bytes = memoryview(blob)  # pyright: ignore[reportArgumentType]
        self._ends = ends

    @classmethod
    def of(cls, ascending: Iterable[str]) -> StringTable:
        """A table of strings that come distinct and in ascending order."""
        # A lone surrogate has no UTF-8 form; it is kept as what it is, so that every Python string can be looked up.
        encoded = [string.encode("utf-8", "surrogatepass") for string in ascending]
        ends = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(part) for part in encoded], out=ends[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, rank: int) -> str:
        return self._at(rank).decode("utf-8", "surrogatepass")

    def find(self, string: str) -> int:
        """The rank of a string, from 0, or -1 where it is not in the table."""
        rank = self.bisect(string)
        wanted = string.encode("utf-8", "surrogatepass")
        return rank if rank < len(self) and self._at(rank) == wanted else -1

    def bisect(self, string: str, after: bool = False) -> int:
        """The number of strings below `string`; with `after` also counting `string` itself."""
        wanted = string.encode("utf-8", "surrogatepass")
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            found = self._at(middle)
            if found < wanted or (after and found == wanted):
                low = middle + 1
            else:
                high = middle
        return low

    def _at(self, rank: int) -> bytes:
        return self._bytes[self._ends[rank] : self._ends[rank + 1]].tobytes()

    def save(self, folder: Path, name: str) -> None:
        """Writes `NAME.bytes.npy` and `NAME.ends.npy`."""
        np.save(folder / f"{name}.bytes.npy", self._blob)
        np.save(folder / f"{name}.ends.npy", self._ends)

    @classmethod
    def load(cls, folder: Path, name: str) -> StringTable:
        """Opens what `save` wrote, memory-mapped. Raises IndexFormatError where it is missing or makes no sense."""
        return cls(
            load_array(folder / f"{name}.bytes.npy", np.uint8, 1), load_array(folder / f"{name}.ends.npy", np.int64, 1)
        )
