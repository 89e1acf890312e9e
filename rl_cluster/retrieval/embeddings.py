"""Embeddings of a corpus on disk: made in blocks, so that a build that is interrupted goes on where it stopped."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np

from rl_cluster.errors import ModelError
from rl_cluster.models.embedder import Embedder, require_finite
from rl_cluster.retrieval.documents import DocumentStore

BLOCK_ROWS = 2048


def embedding_key(corpus_digest: str, embedder: str, max_tokens: int, prompt: str) -> str:
    """Names a set of embeddings: equal keys mean equal rows. `embedder`: its digest; `prompt`: what stands before each text."""
    state = f"{corpus_digest}/{embedder}/{max_tokens}/{BLOCK_ROWS}/{prompt}"
    return hashlib.sha256(state.encode()).hexdigest()[:32]


def write_embeddings(path: Path, documents: DocumentStore, embedder: Embedder, work: Path, prompt: str = "") -> None:
    """Writes float32 `[documents, dimensions]` as one `.npy` file, through blocks of `BLOCK_ROWS` rows in `work`.

    `prompt` is put before each text.

    Blocks that an interrupted call left in `work` are used again; `work` is removed at the end. Raises ModelError where
    the embedder gives rows of different or wrong shape, OSError where there is no room.
    """
    starts = range(0, len(documents), BLOCK_ROWS)
    for start in starts:
        _block(documents, embedder, work, start, prompt)
    with path.open("wb") as stream:
        dimensions = 0
        for start in starts:
            # A block that another build removed meanwhile is made again.
            rows = _block(documents, embedder, work, start, prompt)
            if start == 0:
                dimensions = rows.shape[1]
                header = {"descr": "<f4", "fortran_order": False, "shape": (len(documents), dimensions)}
                np.lib.format.write_array_header_1_0(stream, header)
            if rows.shape[1] != dimensions:
                raise ModelError(
                    f"{work}: its embeddings have {rows.shape[1]} and {dimensions} dimensions; delete it and build again."
                )
            stream.write(rows.astype("<f4").tobytes())
    shutil.rmtree(work, ignore_errors=True)


def _block(documents: DocumentStore, embedder: Embedder, work: Path, start: int, prompt: str) -> np.ndarray:
    """The embeddings of the documents from `start`, read from `work` or made and written there."""
    texts = documents.texts(start, start + BLOCK_ROWS)
    path = work / f"{start:09d}.npy"
    try:
        rows = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        # A text that stands twice is embedded once: between batches its last digits may differ, and then its id breaks no tie.
        place = {pair: number for number, pair in enumerate(dict.fromkeys(texts))}
        rows = embedder.encode([f"{prompt}{title}. {text}" for title, text in place])
        if rows.ndim != 2 or len(rows) != len(place):
            raise ModelError(
                f"The embedder gave an array of shape {rows.shape} for {len(place)} texts; it must give one row a text."
            ) from None
        rows = require_finite(rows, [text for _, text in place])[[place[pair] for pair in texts]]
        work.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with partial.open("wb") as stream:
            np.save(stream, rows)
        partial.replace(path)  # a block appears whole or not at all
    return rows
