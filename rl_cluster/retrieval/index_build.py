"""Builds the folder of a search index. It appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_cluster.errors import IndexBuildError, IndexFormatError
from rl_cluster.models.embedder import Embedder, SentenceEmbedder, embedder_commit, embedder_digest
from rl_cluster.retrieval.arrays import load_array
from rl_cluster.retrieval.devices import Devices
from rl_cluster.retrieval.documents import DocumentStore, in_order, write_documents
from rl_cluster.retrieval.embeddings import embedding_key, write_embeddings
from rl_cluster.retrieval.filters import FilterIndex
from rl_cluster.retrieval.lexical import LexicalIndex
from rl_cluster.retrieval.manifest import FORMAT_VERSION, MANIFEST_FILE, token_versions, write_manifest
from rl_cluster.retrieval.memory import check_build
from rl_cluster.retrieval.recall import measured_recall
from rl_cluster.retrieval.self_check import known_answers, rows_agree
from rl_cluster.retrieval.settings import IndexSettings

if TYPE_CHECKING:
    from rl_cluster.datasets.corpus import Corpus

_TEXT_ROWS = 4096


def content_id(corpus: Corpus, settings: IndexSettings) -> str:
    """sha256 (hex, 32 digits) over the documents, the settings, what makes tokens, and the models' weights."""
    state: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "corpus": corpus.digest(),
        "settings": asdict(settings),
        "tokens": token_versions(),
    }
    if "vector" in settings.parts:
        state["embedder"] = embedder_digest(settings.embedder)
        if settings.fusion.reranker:
            state["reranker"] = embedder_digest(settings.fusion.reranker)
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]


def open_embedder(settings: IndexSettings, devices: Devices, commit: str | None) -> SentenceEmbedder:
    """The embedder that the settings name, not yet loaded. Raises ModelError where it is missing, ConfigError as the class.

    `commit`: at which an index was built, where the embedder lives on a hub.
    """
    return SentenceEmbedder(
        settings.embedder, max_tokens=settings.embed_max_tokens, device=devices.models, commit=commit
    )


def model_commits(settings: IndexSettings) -> dict[str, str | None]:
    """The commits of `embedder` and `reranker` where they live on a hub, so that queries meet the models of the documents."""
    names = {"embedder": settings.embedder, "reranker": settings.fusion.reranker} if "vector" in settings.parts else {}
    return {role: embedder_commit(name) for role, name in names.items() if name}


def build(
    corpus: Corpus,
    settings: IndexSettings,
    folder: Path,
    embedder: Embedder | None,
    memory_gib: float | None = None,
    devices: Devices | None = None,
    processes: int = 1,
) -> None:
    """Builds the index of `corpus` into `folder`; see `SearchIndex.build`."""
    if folder.exists() and any(folder.iterdir()):
        raise IndexFormatError(f"{folder}: the folder is not empty; delete it or choose another one.")
    digest = type(embedder).__name__ if embedder else ""
    if "vector" in settings.parts and embedder is None:
        embedder = open_embedder(settings, devices or Devices(), embedder_commit(settings.embedder))
        embedder.check()
        digest = embedder_digest(settings.embedder)

    def dimensions() -> int:
        assert embedder is not None
        return embedder.encode(["dimensions"]).shape[1]

    check_build(len(corpus), corpus.num_bytes, settings, dimensions, memory_gib)
    identity = content_id(corpus, settings)
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        _write(partial, folder, corpus, settings, identity, embedder, digest, processes)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except IndexBuildError:
        raise
    except OSError as error:
        raise IndexBuildError(
            f"{folder}: the index cannot be written ({error}); make room or choose another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def discard(folder: Path) -> None:
    """Removes an index that cannot be used."""
    # Renamed first: the name is free at once, and a crash while deleting leaves nothing that looks like an index.
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.discarded")
    with contextlib.suppress(FileNotFoundError):  # another process was quicker
        folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _write(
    folder: Path,
    target: Path,
    corpus: Corpus,
    settings: IndexSettings,
    identity: str,
    embedder: Embedder | None,
    digest: str,
    processes: int,
) -> None:
    """`target`: the folder's later name; `digest`: that of the embedder."""
    write_documents(folder, in_order(corpus))
    ordered = DocumentStore(folder, corpus.name)
    FilterIndex.build(ordered.metadata()).save(folder / "filters")
    lexical = vector = key = recall = None
    if "lexical" in settings.parts:
        blocks = (ordered.texts(start, start + _TEXT_ROWS) for start in range(0, len(ordered), _TEXT_ROWS))
        texts = (f"{title}\n{text}" for block in blocks for title, text in block)
        lexical = LexicalIndex.build(texts, settings.lexical, processes)
        lexical.save(folder / "lexical")
    if "vector" in settings.parts:
        from rl_cluster.retrieval.vector import VectorIndex

        assert embedder is not None
        (folder / "vector").mkdir()
        path = folder / "vector" / "embeddings.npy"
        key = embedding_key(corpus.digest(), digest, settings.embed_max_tokens, settings.passage_prompt)
        if not _reuse(key, path, target.parent):
            work = target.parent / f".{key}.embeddings"
            write_embeddings(path, ordered, embedder, work, settings.passage_prompt)
        flat = VectorIndex.load(folder / "vector")
        vector = VectorIndex(flat.embeddings, settings.vector)
        vector.save(folder / "vector")
        recall = measured_recall(ordered, vector, embedder, settings.query_prompt)
    entries = {
        "content_id": identity,
        "corpus": corpus.name,
        "num_documents": len(corpus),
        "embeddings": key,
        "commits": model_commits(settings),
        "recall": recall,
        "answers": known_answers(ordered, lexical, vector),
    }
    write_manifest(folder, settings, entries)


def _reuse(key: str, path: Path, root: Path) -> bool:
    """Takes the embeddings of another index under `root` where it has the same: embedding is most of the work."""
    for manifest in root.glob(f"*/{MANIFEST_FILE}"):
        try:
            state = json.loads(manifest.read_text(encoding="utf-8"))
            if state["embeddings"] != key:
                continue
            donor = manifest.parent / "vector" / "embeddings.npy"
            whole = donor.stat().st_size == state["files"]["vector/embeddings.npy"]
            if not (whole and rows_agree(state, load_array(donor, np.float32, 2))):
                continue
            try:
                os.link(donor, path)
            except OSError:  # another file system, or one without links
                shutil.copyfile(donor, path)
            return True
        except (OSError, ValueError, KeyError, TypeError):
            continue  # no index, or one that is just being removed
    return False
