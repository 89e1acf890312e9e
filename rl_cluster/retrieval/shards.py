"""An index cut into shards: stretches of its documents, each in a folder of its own that a replica opens like any index.

A shard's documents have the weights that they have among all, its filters take the same conditions, and it has the content id of
the whole. So the best of all shards' answers, by score and then by id, are those of the whole, for word search and for vectors
that are compared exactly; an approximate vector index is built for each shard anew, and finds what it finds there. The whole
stays beside its shards.
"""

from __future__ import annotations

import shutil
import uuid
from itertools import pairwise
from pathlib import Path

import numpy as np

from rl_cluster.errors import ConfigError, IndexBuildError, IndexFormatError
from rl_cluster.retrieval.arrays import load_array
from rl_cluster.retrieval.documents import DocumentStore, write_documents
from rl_cluster.retrieval.filters import FilterIndex
from rl_cluster.retrieval.index_build import discard
from rl_cluster.retrieval.lexical import LexicalIndex
from rl_cluster.retrieval.manifest import read_manifest, write_manifest
from rl_cluster.retrieval.memory import open_bytes
from rl_cluster.retrieval.self_check import known_answers


def shard_folder(folder: str | Path, shard: int, number: int) -> str:
    """Where shard `shard` (from 0) of `number` lies; the index itself for one. Raises IndexFormatError where it is not cut so."""
    if number == 1:
        return str(folder)
    path = Path(folder) / f"shards-{number}" / str(shard)
    if not path.is_dir():
        raise IndexFormatError(
            f"{folder}: it is not cut into {number} shards; build it with search.shards={number}, or set search.shards to what "
            "it is cut into."
        )
    return str(path)


def shard_bytes(folder: str | Path, number: int, parts: tuple[str, ...]) -> int:
    """What the `parts` of the largest of `number` shards take once they are warm.

    Where the index is not cut so, an equal share of the whole, since the largest takes no less. Raises IndexFormatError where
    there is no whole index.
    """
    folder = Path(folder)
    manifest, settings = read_manifest(folder)
    target = folder / f"shards-{number}"
    if number == 1 or not _is_whole(target, number, manifest["content_id"]):
        return open_bytes(manifest, settings, parts) // number
    return max(open_bytes(*read_manifest(target / str(shard)), parts) for shard in range(number))


def cut(folder: str | Path, number: int) -> None:
    """Writes the shards of the index in `folder` beside its files, where they are not there yet.

    Raises IndexFormatError where there is no whole index, ConfigError where it cannot be cut so, and IndexBuildError where there
    is no room.
    """
    folder = Path(folder)
    manifest, _ = read_manifest(folder)
    documents = manifest["num_documents"]
    if not 1 <= number <= documents:
        raise ConfigError(
            f"search.shards is {number}, but {folder} has {documents} documents; give a number from 1 to that."
        )
    target = folder / f"shards-{number}"
    if number == 1 or _is_whole(target, number, manifest["content_id"]):
        return
    partial = folder / f".{target.name}.{uuid.uuid4().hex[:8]}.partial"
    bounds = [documents * i // number for i in range(number + 1)]
    try:
        for shard, (start, stop) in enumerate(pairwise(bounds)):
            _write(folder, partial / str(shard), start, stop)
        if not _is_whole(target, number, manifest["content_id"]):  # another process may have been quicker
            discard(target)
            partial.rename(target)
    except OSError as error:
        raise IndexBuildError(
            f"{target}: the shards cannot be written ({error}); make room or choose another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_whole(target: Path, number: int, identity: str) -> bool:
    try:
        return all(read_manifest(target / str(shard))[0]["content_id"] == identity for shard in range(number))
    except IndexFormatError:
        return False


def _write(folder: Path, target: Path, start: int, stop: int) -> None:
    manifest, settings = read_manifest(folder)
    target.mkdir(parents=True)
    store = DocumentStore(folder, manifest["corpus"])
    write_documents(target, map(store.at, range(start, stop)))
    FilterIndex.load(folder / "filters").cut(start, stop).save(target / "filters")
    lexical = vector = None
    if "lexical" in settings.parts:
        lexical = LexicalIndex.load(folder / "lexical").cut(start, stop)
        lexical.save(target / "lexical")
    if "vector" in settings.parts:
        from rl_cluster.retrieval.vector import VectorIndex

        (target / "vector").mkdir()
        rows = load_array(folder / "vector" / "embeddings.npy", np.float32, 2)[start:stop]
        vector = VectorIndex(rows, settings.vector)
        vector.save(target / "vector")
    entries = {
        "content_id": manifest["content_id"],
        "corpus": manifest["corpus"],
        "num_documents": stop - start,
        "commits": manifest["commits"],
        "embeddings": None,  # those of the whole are shared between indexes, not a stretch of them
        "answers": known_answers(DocumentStore(target, manifest["corpus"]), lexical, vector),
    }
    write_manifest(target, settings, entries)
