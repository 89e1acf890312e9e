"""Queries in a batch get what they get alone, bit for bit; an index that cannot fit is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.errors import ConfigError, SearchRequestError
from rl_cluster.models.embedder import SentenceEmbedder, encode_queries
from rl_cluster.retrieval.index import IndexSettings, Query, SearchIndex
from rl_cluster.retrieval.memory import check_build, machine_gib, vector_bytes
from rl_cluster.retrieval.vector import VectorIndex
from rl_cluster.retrieval.vector_settings import VectorSettings
from tests.helpers.small_index import HashEmbedder, documents


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    corpus = Corpus.from_documents("kb", documents(1, 300))
    return SearchIndex.build(corpus, IndexSettings(), tmp_path_factory.mktemp("i") / "i", embedder=HashEmbedder())


@pytest.mark.slow
def test_encode_queries_in_any_batch_gives_equal_bits() -> None:
    texts = [" ".join(f"word{j}" for j in range(1 + i % 40)) for i in range(60)] + ["", "水泵 重启"]
    embedder = SentenceEmbedder(max_tokens=64)
    alone = np.concatenate([encode_queries(embedder, [text]) for text in texts])
    for size in (2, 3, 7, 62):
        batched = np.concatenate([encode_queries(embedder, texts[i : i + size]) for i in range(0, len(texts), size)])
        assert np.array_equal(batched, alone)
    np.testing.assert_allclose(alone, embedder.encode(texts), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-6)


def test_search_many_each_query_with_its_own_k_excluded_and_filters(index: SearchIndex) -> None:
    queries = [
        Query("pump line 10", 3),
        Query("valve", 50, ("d001", "d006")),
        Query("boiler", 7, filters={"year": {"gte": 2010}}),
        Query("pump line 10", 1),
        Query("audit step", 100, ("nope",)),
    ]
    for tool in ("lexical", "vector", "hybrid"):
        alone = [index.search(tool, q.text, q.k, q.excluded, q.filters) for q in queries]
        assert index.search_many(tool, queries) == alone
        assert index.search_many(tool, queries[::-1]) == alone[::-1]


def test_search_many_wrong_query_gets_its_error_and_leaves_the_others(index: SearchIndex) -> None:
    good = Query("pump", 2)
    answers = index.search_many("vector", [good, Query("", 2), Query("x", 0), Query("x", 1, filters={"no": 1}), good])
    assert [isinstance(answer, SearchRequestError) for answer in answers] == [False, True, True, True, False]
    assert answers[0] == answers[4] == index.search("vector", "pump", 2)
    assert index.search_many("vector", []) == []


@pytest.mark.parametrize("block", [1, 7, 128, 499, 500, 16_384])
def test_vector_search_many_in_blocks_of_rows_equals_brute_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("rl_cluster.retrieval.vector._MATRIX_ROWS", block)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(500, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    VectorIndex(rows).save(tmp_path)
    index, ks = VectorIndex.load(tmp_path), [1, 10, 499, 500, 600]  # memory-mapped
    exact = rows.astype(np.float64) @ rows[:5].astype(np.float64).T
    found = index.search_many(rows[:5], ks, [None] * 5)
    for answer, k, scores in zip(found, ks, exact.T, strict=True):
        assert [position for position, _ in answer] == np.argsort(-scores, kind="stable")[:k].tolist()


def test_vector_search_many_with_ties_equals_search() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 3, (500, 3)).astype(np.float32)  # few directions, hence many ties
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = VectorIndex(rows)
    vectors, ks = rows[:40], [1 + i % 30 for i in range(40)]
    masks = [None if i % 3 else rng.random(500) < 0.5 for i in range(40)]
    expected = [index.search(v, k, allowed=mask) for v, k, mask in zip(vectors, ks, masks, strict=True)]
    assert index.search_many(vectors, ks, masks) == expected


def test_build_over_the_memory_given_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    corpus = Corpus.from_documents("kb", documents(1))
    with pytest.raises(ConfigError) as caught:
        SearchIndex.open_or_build(corpus, IndexSettings(), tmp_path, embedder=HashEmbedder(), memory_gib=1e-6)
    assert "search.memory_gib=1e-06" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_build_flat_index_over_the_machine_names_both_sizes_and_the_smaller_option() -> None:
    settings = IndexSettings(parts=("vector",))
    with pytest.raises(ConfigError, match=r"needs about 62 GiB .* the machine has|search\.memory_gib=16") as caught:
        check_build(21_000_000, 10**9, settings, lambda: 792, 16.0)
    assert "set search/vector=ivf_pq, whose vectors take" in str(caught.value)
    check_build(21_000_000, 10**9, IndexSettings(("vector",), vector=VectorSettings("ivf_pq")), lambda: 792, 16.0)


def test_memory_of_kinds_is_ordered_and_the_machines_is_known() -> None:
    sizes = [vector_bytes(1000, 384, VectorSettings(kind)) for kind in ("ivf_pq", "flat", "hnsw")]
    assert sizes == sorted(sizes)
    assert 0.1 < machine_gib() < 1e5
