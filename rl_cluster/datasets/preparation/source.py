"""What a data set is read from: a folder, a zip archive, or both mixed, seen as one list of files.

Members of zip archives stand beside the other files, under the folder of their archive. `.gz` and `.zst` files open
decompressed, and a pattern for `x.jsonl` finds `x.jsonl.gz` too.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import pyarrow as pa

from rl_cluster.errors import DataError

_BUFFER = 1 << 20
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LISTED_INPUTS = 100
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, pa.ArrowInvalid)
"""What a file raises that cannot be read or ends before its end."""


@dataclass(frozen=True)
class SourceFile:
    """One file of a source: `name` is its path there, with `/`; `member` its name in the archive that `path` then is."""

    name: str
    size: int
    path: Path
    member: str | None = None

    @property
    def plain_name(self) -> str:
        """The name without a compression's ending."""
        return self.name.removesuffix(".gz").removesuffix(".zst")


@dataclass(frozen=True)
class Stream:
    """Decompressed bytes, and how far the file below has been read: `position()` of `size`."""

    data: BinaryIO
    position: Callable[[], int]
    size: int


@dataclass
class Source:
    """The files of a data set, sorted by name, and what is known of where they come from.

    `where` is for messages; `kind` is `folder`, `zip` or `hub`; `revision` is a commit, where one is known; `watch` is told
    (file name, bytes read, bytes in all) while a file is read; `place` says which row was read last.
    """

    files: list[SourceFile]
    where: str
    kind: str = "folder"
    revision: str | None = None
    watch: Callable[[str, int, int], None] = lambda name, done, of: None
    place: tuple[str, int] = ("", 0)
    _used: set[SourceFile] = field(default_factory=set)
    _archives: dict[Path, zipfile.ZipFile] = field(default_factory=dict)

    def find(self, *patterns: str) -> list[SourceFile]:
        """The files whose path ends as one of the patterns says (`*` stays inside a folder)."""
        return [file for file in self.files if any(PurePosixPath(file.plain_name).match(p) for p in patterns)]

    def some(self, purpose: str, *patterns: str) -> list[SourceFile]:
        """At least one file; the DataError names what was looked for."""
        found = self.find(*patterns)
        if not found:
            raise DataError(
                f"{self.where}: {purpose} cannot be found ({' or '.join(patterns)}); put it there or mend source."
            )
        return found

    def one(self, purpose: str, *patterns: str) -> SourceFile:
        """Exactly one file; the DataError lists several."""
        found = self.some(purpose, *patterns)
        if len(found) > 1:
            listed = ", ".join(file.name for file in found[:4])
            raise DataError(f"{self.where}: {len(found)} files could be {purpose} ({listed}); leave one of them there.")
        return found[0]

    def open(self, file: SourceFile) -> Stream:
        """Opens a file for reading.

        Raises DataError where a Git LFS pointer stands in its place, or an archive that is damaged or that zipfile cannot unpack.
        """
        self._used.add(file)
        try:
            raw = self._raw(file)
            start = b""
            if raw.seekable():
                start = raw.read(len(_LFS_POINTER))
                raw.seek(0)
        except READ_ERRORS as error:
            raise DataError(f"{file.name}: it cannot be opened ({error}); download it again.") from error
        if start == _LFS_POINTER:
            raise DataError(f"{file.name}: it is a Git LFS pointer, not the file; fetch it with `git lfs pull`.")
        data = raw
        if file.name.endswith(".gz"):
            data = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw)), _BUFFER))
        elif file.name.endswith(".zst"):
            unpacked = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
            data = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, unpacked), _BUFFER))
        return Stream(data, raw.tell, file.size)

    def _raw(self, file: SourceFile) -> BinaryIO:
        if file.member is None:
            return open(file.path, "rb", buffering=_BUFFER)
        if file.path not in self._archives:
            self._archives[file.path] = zipfile.ZipFile(file.path)
        try:
            return cast(BinaryIO, self._archives[file.path].open(file.member))
        # A password, or (as NotImplementedError) a compression that zipfile does not know.
        except RuntimeError as error:
            raise _not_unpacked(file.path, file.name, error) from error

    def inputs(self) -> list[dict[str, object]]:
        """Name, bytes and sha256 of every file on disk that was opened; where they are many, of all together."""
        names: dict[Path, str] = {}
        for file in self._used:
            folder = PurePosixPath(file.name.removesuffix(file.member or ""))
            names[file.path] = file.name if file.member is None else str(folder / file.path.name)
        found = [
            (name, path.stat().st_size, sha256_of(path)) for path, name in sorted(names.items(), key=lambda x: x[1])
        ]
        if len(found) > _LISTED_INPUTS:
            together = hashlib.sha256("".join(f"{digest} {name}\n" for name, _, digest in found).encode()).hexdigest()
            found = [(f"{len(found)} files", sum(size for _, size, _ in found), together)]
        return [{"name": name, "bytes": size, "sha256": digest} for name, size, digest in found]


def open_source(path: Path, prefix: str = "") -> Source:
    """A folder or a zip archive; `prefix` is put before all names. Raises DataError where an archive is damaged."""
    files = _members(path, prefix) if path.is_file() else _walk(path, prefix)
    files.sort(key=lambda file: file.name)
    return Source(files, str(path), "zip" if path.is_file() else "folder", _revision(path))


def merge_sources(parts: Sequence[Source]) -> Source:
    """Several sources as one."""
    files = sorted((file for part in parts for file in part.files), key=lambda file: file.name)
    revisions = [part.revision for part in parts if part.revision]
    return Source(files, ", ".join(part.where for part in parts), parts[0].kind, " ".join(revisions) or None)


def sha256_of(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _walk(root: Path, prefix: str) -> list[SourceFile]:
    found = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = PurePosixPath(prefix) / Path(folder).relative_to(root).as_posix()
        for name in names:
            path = Path(folder) / name
            if name.endswith(".zip"):
                found += _members(path, str(inside))
            elif path.is_file():
                found.append(SourceFile(str(inside / name), path.stat().st_size, path))
    return found


def _members(path: Path, folder: str) -> list[SourceFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
    except NotImplementedError as error:
        raise _not_unpacked(path, "it", error) from error
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: it is no whole zip archive ({error}); download it again.") from error
    return [
        SourceFile(str(PurePosixPath(folder) / info.filename), info.file_size, path, info.filename) for info in members
    ]


def _not_unpacked(archive: Path, what: str, error: RuntimeError) -> DataError:
    return DataError(
        f"{archive}: {what} cannot be unpacked ({error}); unpack the archive with another program and give the folder of its files in its "
        "place."
    )


def _revision(path: Path) -> str | None:
    """The commit of a git clone, or of a folder in the hub's cache (`snapshots/COMMIT`)."""
    if path.parent.name == "snapshots":
        return path.name
    head = path / ".git" / "HEAD"
    if not head.is_file():
        return None
    content = head.read_text(encoding="utf-8").strip()
    if not content.startswith("ref: "):
        return content
    reference = path / ".git" / content.removeprefix("ref: ")
    return reference.read_text(encoding="utf-8").strip() if reference.is_file() else None
