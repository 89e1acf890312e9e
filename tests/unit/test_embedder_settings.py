"""What an embedder is given and where it computes: prompts, the length of texts, devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.errors import ConfigError
from rl_cluster.models.embedder import SentenceEmbedder, most_tokens
from rl_cluster.models.steady_batches import can_batch
from rl_cluster.retrieval import vector
from rl_cluster.retrieval.devices import Devices, devices_from_config
from rl_cluster.retrieval.index import IndexSettings, Query, SearchIndex, content_id
from rl_cluster.retrieval.rerank import CrossEncoderReranker
from rl_cluster.retrieval.settings import settings_from_config
from rl_cluster.retrieval.vector import VectorIndex
from rl_cluster.retrieval.vector_settings import VectorSettings
from tests.helpers.configuration import load_config
from tests.helpers.small_index import HashEmbedder, documents

CORPUS = Corpus.from_documents("kb", documents(1))
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
faiss_without_gpu = pytest.mark.skipif(hasattr(faiss, "StandardGpuResources"), reason="this faiss has GPU support")


class Remembering(HashEmbedder):
    """Remembers every text."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def encode(self, texts: Any) -> np.ndarray:
        self.texts += texts
        return super().encode(texts)


def test_prompts_stand_before_every_query_and_every_document(tmp_path: Path) -> None:
    settings = IndexSettings(parts=("vector",), query_prompt="query: ", passage_prompt="passage: ")
    built = Remembering()
    SearchIndex.build(CORPUS, settings, tmp_path / "i", embedder=built)
    assert len(built.texts) == len(CORPUS)
    assert all(text.startswith("passage: ") for text in built.texts)
    asked = Remembering()
    index = SearchIndex.open(tmp_path / "i", embedder=asked)
    index.search_many("vector", [Query("pump", 3), Query("valve", 3)])
    assert asked.texts == ["query: pump", "query: valve"]


def test_prompts_change_the_content_id_and_only_that_of_documents_the_embeddings(tmp_path: Path) -> None:
    chosen = [{}, {"query_prompt": "query: "}, {"passage_prompt": "passage: "}]
    ids = {content_id(CORPUS, IndexSettings(**values)) for values in chosen}  # pyright: ignore[reportArgumentType]
    assert len(ids) == 3
    embedded = []
    for values in chosen:
        embedder = Remembering()
        SearchIndex.open_or_build(CORPUS, IndexSettings(**values), tmp_path, embedder=embedder)  # pyright: ignore[reportArgumentType]
        embedded.append(len(embedder.texts))
    assert embedded == [len(CORPUS), 0, len(CORPUS)]


def test_settings_from_config_has_prompts_and_no_device() -> None:
    overrides = ["search.query_prompt='query: '", "search.passage_prompt='passage: '"]
    plain, prompted = (settings_from_config(load_config(o).search.model_dump(), ["en"]) for o in ([], overrides))
    assert (plain.query_prompt, plain.passage_prompt) == ("", "")
    assert (prompted.query_prompt, prompted.passage_prompt) == ("query: ", "passage: ")
    on_gpu = load_config(["search.device=cuda", "search.vector.device=cuda", "search.gpus_per_replica=0.5"]).search
    assert settings_from_config(on_gpu.model_dump(), ["en"]) == plain
    assert devices_from_config(on_gpu.model_dump()) == Devices("cuda", "cuda")


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514}, 512),
        ({"model_type": "t5"}, None),
        ({}, None),
    ],
)
def test_most_tokens_of_a_configuration(config: dict[str, Any], most: int | None) -> None:
    assert most_tokens(config) == most


def test_embedder_with_fewer_positions_than_asked_for_is_refused_before_building(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"search\.embed_max_tokens=513 is over the 512 positions of the embedder bundled"
    ):
        SentenceEmbedder(max_tokens=513)
    SentenceEmbedder(max_tokens=512)
    folder = tmp_path / "own"
    (folder / "0_Transformer").mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "path": "0_Transformer"}]))
    config = {"model_type": "roberta", "max_position_embeddings": 130, "pad_token_id": 1}
    (folder / "0_Transformer" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="129 is over the 128 positions"):
        SearchIndex.build(CORPUS, IndexSettings(embedder=str(folder), embed_max_tokens=129), tmp_path / "i")
    assert not (tmp_path / "i").exists()
    SentenceEmbedder(str(folder), max_tokens=128)


def test_batches_that_would_be_padded_over_the_positions_are_not_made() -> None:
    assert not can_batch(object(), 500, 500)


@pytest.mark.slow
@no_gpu
def test_models_on_a_gpu_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"search\.device=cuda: torch .* finds no GPU"):
        SentenceEmbedder(device="cuda").encode(["x"])
    with pytest.raises(ConfigError, match=r"search\.device=cuda"):
        CrossEncoderReranker("owner/name", device="cuda").scores("a", ["b"])
    with pytest.raises(ConfigError, match=r"search\.device=cuda"):
        SearchIndex.build(CORPUS, IndexSettings(), tmp_path / "i", devices=Devices("cuda"))


@faiss_without_gpu
@pytest.mark.parametrize("kind", ["flat", "ivf_pq"])
def test_vectors_on_a_gpu_without_a_faiss_for_it_are_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    settings = VectorSettings(kind, code_bytes=8, lists=4)
    SearchIndex.build(
        Corpus.from_documents("kb", documents(1, 300)),
        IndexSettings(parts=("vector",), vector=settings),
        tmp_path / "i",
        embedder=HashEmbedder(),
    )
    with pytest.raises(ConfigError) as caught:
        SearchIndex.open(tmp_path / "i", embedder=HashEmbedder(), devices=Devices(vectors="cuda"))
    assert f"search.vector.device=cuda: the installed faiss {faiss.__version__} has no GPU support; " in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


def test_vectors_on_a_gpu_as_a_graph_are_refused() -> None:
    rows = HashEmbedder().encode([f"text {i}" for i in range(50)])
    with pytest.raises(ConfigError, match="kind=hnsw has no form for GPUs"):
        VectorIndex(rows, VectorSettings("hnsw"), device="cuda")
    with pytest.raises(ConfigError, match="kind=hnsw has no form for GPUs"):
        load_config(["search/vector=hnsw", "search.vector.device=cuda", "search.gpus_per_replica=1.0"])


@pytest.mark.parametrize("device", ["search.device=cuda", "search.vector.device=cuda"])
def test_load_config_a_device_without_a_gpu_for_replicas_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="set gpus_per_replica to a share of one"):
        load_config([device])


class CandidatesOnCpu:
    """Stands in for the GPU: faiss's own index of all rows, with the limit that a GPU has."""

    def __init__(self, embeddings: np.ndarray, settings: VectorSettings, approximate: Any) -> None:
        self.index: Any = approximate or faiss.IndexFlatIP(embeddings.shape[1])
        self.parameters = faiss.SearchParametersIVF(nprobe=settings.probes) if approximate else None  # pyright: ignore[reportCallIssue]
        if approximate is None:
            self.index.add(embeddings)
        self.calls = 0

    def nearest(self, queries: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
        assert wanted <= vector.MOST_RESULTS
        self.calls += 1
        return self.index.search(queries, wanted, params=self.parameters)


@pytest.mark.parametrize("kind", ["flat", "ivf_pq"])
def test_candidates_of_a_gpu_give_the_answers_of_the_cpu(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(vector, "GpuCandidates", CandidatesOnCpu)
    monkeypatch.setattr(vector, "MOST_RESULTS", 60)
    monkeypatch.setattr(vector, "_FEW_ALLOWED", 100)
    monkeypatch.setattr(vector, "_FEW_BANNED", 10)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 16)).astype(np.float32)
    rows[::7] = rows[0]  # ties
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    settings = VectorSettings(kind, code_bytes=8, lists=10, probes=5, refine=4)
    cpu = VectorIndex(rows, settings)
    gpu = VectorIndex(rows, settings, cpu._approximate, "cuda")
    masks = [None, rng.random(2000) < 0.5, np.arange(2000) > 3]
    for k in (1, 10, 100):
        for mask in masks:
            assert [gpu.search(q, k, allowed=mask) for q in rows[1:9]] == [
                cpu.search(q, k, allowed=mask) for q in rows[1:9]
            ]
    ks: list[int] = [1 + i % 9 for i in range(20)]
    assert gpu.search_many(rows[:20], ks, [None] * 20) == cpu.search_many(rows[:20], ks, [None] * 20)
    assert gpu._gpu is not None
    assert gpu._gpu.calls > 0  # pyright: ignore[reportAttributeAccessIssue]
