"""Ordering a few results anew with a model that reads query and document together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from rl_cluster.errors import ModelError
from rl_cluster.models.cutting import CHARACTERS_PER_TOKEN
from rl_cluster.models.device import check_device
from rl_cluster.models.shared import shared_model


class Reranker(Protocol):
    """What `hybrid_search` needs from a re-ranker."""

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """Returns float32 `[len(texts)]`; a higher score is a better fit."""
        ...


def check_reranker(name: str) -> None:
    """Raises ModelError where `name` is neither a folder nor a hub id, or a folder without a model."""
    folder = Path(name)
    if not folder.is_dir() and (name.startswith(("/", ".", "~")) or name.count("/") != 1):
        raise ModelError(f"The re-ranker {name!r} is neither a folder nor a hub id (owner/name); correct the path.")
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(f"The re-ranker {name!r} has no config.json; give the folder of a model.")


class CrossEncoderReranker:
    """A sentence-transformers cross-encoder that is loaded at its first use, once in a process, and may be called from several
    threads.

    `max_tokens` cuts query and text together; `device`: `cpu` or `cuda`; `commit`: of a hub's model, the newest by default. Raises
    ModelError at once as `check_reranker`, and on first use where the model cannot be read; ConfigError on
    first use where there is no such device.
    """

    def __init__(
        self, name: str, *, max_tokens: int = 256, batch_size: int = 32, device: str = "cpu", commit: str | None = None
    ):
        check_reranker(name)
        self.name = name
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self.device = device
        self.commit = commit
        self._shared = shared_model(name, "re-ranker", device, commit, max_tokens)

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """Returns float32 `[len(texts)]`; a higher score is a better fit."""
        with self._shared.lock:
            pairs = [(query, text[: CHARACTERS_PER_TOKEN * self.max_tokens]) for text in texts]
            scores = self._loaded().predict(pairs, batch_size=self.batch_size, show_progress_bar=False)
        scores = np.asarray(scores, np.float32)
        if scores.shape != (len(texts),):
            raise ModelError(
                f"The re-ranker {self.name!r} gives scores of shape {scores.shape} for {len(texts)} texts; use a model with one label."
            )
        return scores

    def _loaded(self):
        if self._shared.model is None:
            from sentence_transformers import CrossEncoder

            check_device(self.device)
            try:
                self._shared.model = CrossEncoder(
                    self.name,
                    device=self.device,
                    max_length=self.max_tokens,
                    revision=self.commit,
                    local_files_only=Path(self.name).is_dir(),
                )
            except (OSError, ValueError) as error:
                raise ModelError(
                    f"The re-ranker {self.name!r} cannot be loaded ({error}); name a cross-encoder's folder."
                ) from error
        return self._shared.model
