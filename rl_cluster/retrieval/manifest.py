"""The manifest of an index folder: what it holds, what made it, and what it must answer.

It is written last, into a folder that gets its name only then. A folder without a whole manifest, with a file missing, cut or damaged, of another format, or made by other versions of what decides on tokens is refused, never read.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from blake3 import blake3

from rl_cluster.errors import IndexFormatError
from rl_cluster.retrieval.settings import IndexSettings, settings_from_state

FORMAT_VERSION = 7
DIGESTED_BYTES = 64 << 20
"""Larger files are not read whole when an index is opened; the known questions are all that tries them."""
MANIFEST_FILE = "manifest.json"
_LIBRARIES = ("bm25s", "rank-bm25", "faiss-cpu", "faiss-gpu", "sentence-transformers", "numpy", "pyarrow", "PyStemmer")


def token_versions() -> dict[str, str]:
    """Versions of what turns text into tokens: with others, a query's tokens may not be those in the index."""
    # bm25s brings the stop words.
    return {"unicode": unicodedata.unidata_version, **{name: _version(name) for name in ("PyStemmer", "bm25s")}}


_version = cache(version)


def write_manifest(folder: Path, settings: IndexSettings, entries: dict[str, Any]) -> None:
    """Writes the manifest of a folder whose other files are complete."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {name: path.stat().st_size for name, path in paths.items()}
    manifest = {
        "format": FORMAT_VERSION,
        "settings": asdict(settings),
        "libraries": _library_versions(),
        "tokens": token_versions(),
        "files": files,
        "digests": {name: _digest(paths[name]) for name, size in files.items() if size <= DIGESTED_BYTES},
        **entries,
    }
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")


def read_manifest(folder: Path) -> tuple[dict[str, Any], IndexSettings]:
    """Raises IndexFormatError where the folder is no complete index of this format."""
    if not folder.is_dir():
        raise IndexFormatError(f"{folder}: there is no such folder; give that of an index, or build it.")
    if not (folder / MANIFEST_FILE).exists():
        raise IndexFormatError(
            f"{folder}: it is no complete index ({MANIFEST_FILE} is missing); give the folder of one, or build again."
        )
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IndexFormatError(f"{folder}: it is no complete index ({error}); delete it and build again.") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT_VERSION:
        raise IndexFormatError(f"{folder}: its format is {found!r}, not {FORMAT_VERSION}; delete it and build again.")
    try:
        settings = settings_from_state(manifest["settings"])
        files, made_by, digests = dict(manifest["files"]), manifest["tokens"], dict(manifest["digests"])
        _ = manifest["content_id"], manifest["num_documents"], dict(manifest["commits"])
        if not files or not dict(manifest["answers"]):
            raise ValueError("it names no files or no known answers")
    except (KeyError, TypeError, ValueError) as error:
        raise IndexFormatError(
            f"{folder}: its settings cannot be read ({error}); delete it and build again."
        ) from error
    if made_by != token_versions():
        raise IndexFormatError(
            f"{folder}: it was made with {made_by}, but here are {token_versions()}; delete it and build again."
        )
    for name, size in files.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise IndexFormatError(f"{folder}: the file {name} is missing or cut; delete the folder and build again.")
    for name, digest in digests.items():
        if name not in files or _digest(folder / name) != digest:
            raise IndexFormatError(f"{folder}: the file {name} is damaged; delete the folder and build again.")
    return manifest, settings


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        hasher = blake3()
        while block := stream.read(1 << 18):
            hasher.update(block)
    return hasher.hexdigest()


def check_parts(folder: str | Path, settings: IndexSettings, parts: tuple[str, ...]) -> None:
    """Raises IndexFormatError where an index was built without one of the `parts` that are to be read; `settings`: its own."""
    missing = next((part for part in parts if part not in settings.parts), None)
    if missing is not None:
        raise IndexFormatError(
            f"{folder}: it was built without its part {missing!r}; leave out the tools that read it, or build the index for them."
        )


def _library_versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = _version(name)
        except PackageNotFoundError:
            continue
    return found
