"""A model is loaded once for all its users in a process, and a text costs no more than the tokens of it that count."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.models.cutting import CHARACTERS_PER_TOKEN, beginning
from rl_cluster.models.embedder import DEFAULT_EMBEDDER, SentenceEmbedder, resolve_embedder
from rl_cluster.models.shared import shared_model
from rl_cluster.retrieval.index import IndexSettings, SearchIndex
from rl_cluster.retrieval.rerank import CrossEncoderReranker
from rl_cluster.service.catalog import IndexCatalog
from rl_cluster.service.values import SearchAnswer, SearchRequest
from tests.helpers.small_index import documents


class AnyRows:
    """Rows as long as those of the model, made without it."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.full((len(texts), 384), 384**-0.5, np.float32)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder of its own, so that no other test keeps its model."""
    return str(shutil.copytree(resolve_embedder(DEFAULT_EMBEDDER), tmp_path / "model", copy_function=os.link))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources of all models that are loaded."""
    import sentence_transformers

    found: list[str] = []
    real = sentence_transformers.SentenceTransformer

    def load(source: str, **settings: Any) -> Any:
        found.append(source)
        return real(source, **settings)

    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", load)
    return found


@pytest.mark.slow
def test_catalog_of_several_indexes_loads_their_embedder_once(tmp_path: Path, model: str, loads: list[str]) -> None:
    settings = IndexSettings(parts=("vector",), embedder=model)
    folders = {f"kb{i}": str(tmp_path / f"i{i}") for i in (1, 2, 3)}
    for number, folder in enumerate(folders.values()):
        SearchIndex.build(Corpus.from_documents("kb", documents(number, 5)), settings, Path(folder), embedder=AnyRows())
    assert loads == []
    catalog = IndexCatalog(("vector",))
    catalog.apply(folders)
    catalog.apply({**folders, "kb1": folders["kb2"]}, {"kb1": folders["kb3"]})
    replies = catalog.answer([SearchRequest("vector_search", "pump", 1, index=name) for name in folders])
    assert all(isinstance(reply, SearchAnswer) for reply in replies)
    assert loads == [model]


@pytest.mark.slow
def test_embedders_of_one_model_cut_texts_each_where_it_should(model: str, loads: list[str]) -> None:
    text = " ".join(f"word{i}" for i in range(200))
    short, long = SentenceEmbedder(model, max_tokens=16), SentenceEmbedder(model, max_tokens=64)
    rows = [embedder.encode([text])[0] for embedder in (short, long, short)]
    assert loads == [model]
    assert np.array_equal(rows[0], rows[2])
    assert not np.allclose(rows[0], rows[1], atol=1e-3)
    del short, long
    gc.collect()
    SentenceEmbedder(model, max_tokens=16).encode([text])
    assert loads == [model, model]


def test_shared_model_is_another_where_the_files_or_the_device_are(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"1")
    first = shared_model(str(tmp_path), "embedder", "cpu")
    assert shared_model(str(tmp_path), "embedder", "cpu") is first
    assert shared_model(str(tmp_path), "embedder", "cuda") is not first
    (tmp_path / "weights.bin").write_bytes(b"22")
    assert shared_model(str(tmp_path), "embedder", "cpu") is not first


def test_rerankers_of_one_name_share_their_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first, second = CrossEncoderReranker(str(tmp_path)), CrossEncoderReranker(str(tmp_path))
    assert first._shared is second._shared
    assert CrossEncoderReranker(str(tmp_path), max_tokens=64)._shared is not first._shared


class Words:
    """A tokenizer of words at blanks that counts what it reads."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, text: str, truncation: bool, max_length: int) -> dict[str, list[str]]:
        self.read += len(text)
        return {"input_ids": text.split()[:max_length]}


@pytest.mark.parametrize(
    "text",
    [
        "pump " * 2_000_000,
        "—" * 9_000 + " valve" * 2_000_000,
        " " * 300_000 + "pump valve " * 1_000_000,
        "A" * 100_000 + " valve" * 1_000_000,
        "水泵" * 3_000_000,
        "pump",
        "",
    ],
)
def test_beginning_of_a_long_text_has_the_same_first_tokens(text: str) -> None:
    tokenizer = Words()
    cut = beginning(text, tokenizer, 128)
    assert text.startswith(cut)
    assert cut.split()[:128] == text.split()[:128]
    if text.startswith("pump "):
        assert len(cut) == CHARACTERS_PER_TOKEN * 128
        assert tokenizer.read <= len(cut)


@pytest.mark.slow
def test_embedder_of_a_very_long_text_gives_the_vector_of_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = SentenceEmbedder(max_tokens=32)
    text = "".join(f"word{i} " for i in range(300_000))
    expected = embedder.encode([text[:2000]])
    seen: list[int] = []
    model = embedder._loaded()
    real = model.encode
    monkeypatch.setattr(model, "encode", lambda texts, **how: seen.extend(map(len, texts)) or real(texts, **how))
    assert np.array_equal(embedder.encode([text]), expected)
    assert seen == [CHARACTERS_PER_TOKEN * 32]
