"""`GroupJournal`: finished groups on disk, frame by frame, so that a crash loses none that was acknowledged."""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rl_cluster.episodes.trajectory import Trajectory

_HEADER = struct.Struct("<QI")


@dataclass
class _Frame:
    group_id: str
    group: list[Trajectory]


class GroupJournal:
    """Frames of (length, CRC-32, MessagePack). A torn last frame, as a crash leaves it, ends the reading."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def append(self, group_id: str, group: list[Trajectory]) -> None:
        """Returns when the frame is on disk."""
        with open(self.path, "ab") as file:
            file.write(_encode(group_id, group))
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> Iterator[tuple[str, list[Trajectory]]]:
        """All whole frames in the order of writing."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        position = 0
        while position + _HEADER.size <= len(data):
            length, checksum = _HEADER.unpack_from(data, position)
            body = data[position + _HEADER.size : position + _HEADER.size + length]
            if len(body) < length or zlib.crc32(body) != checksum:
                return
            frame = msgspec.msgpack.decode(body, type=_Frame)
            yield frame.group_id, frame.group
            position += _HEADER.size + length

    def rewrite(self, groups: Mapping[str, list[Trajectory]]) -> None:
        """Replaces the journal, atomically, by these groups."""
        scratch = self.path.with_suffix(".partial")
        with open(scratch, "wb") as file:
            for group_id, group in groups.items():
                file.write(_encode(group_id, group))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path)


def _plain(value: Any) -> list[Any]:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError(f"a trajectory holds a {type(value).__name__}, which has no form on disk")


def _encode(group_id: str, group: list[Trajectory]) -> bytes:
    # Unlike JSON, MessagePack keeps a log-prob of NaN, which marks one that the engine did not report.
    body = msgspec.msgpack.encode(_Frame(group_id, group), enc_hook=_plain)
    return _HEADER.pack(len(body), zlib.crc32(body)) + body
