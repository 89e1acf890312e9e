"""Queries are embedded once while they are kept, and get the row that they get alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_cluster.retrieval.query_vectors import LONGEST_KEPT, QueryVectors
from tests.helpers.small_index import HashEmbedder


class Counting(HashEmbedder):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return super().encode(texts)


def test_query_vectors_repeated_queries_are_embedded_once_with_their_prompt() -> None:
    embedder = Counting()
    vectors = QueryVectors(embedder, "query: ")
    first = vectors.of(["pump", "valve", "pump"])
    assert embedder.asked == ["query: pump", "query: valve"]
    second = vectors.of(["boiler", "pump"])
    assert embedder.asked == ["query: pump", "query: valve", "query: boiler"]
    assert np.array_equal(first[0], first[2])
    assert np.array_equal(second[1], first[0])
    assert np.array_equal(second[0], HashEmbedder().encode(["query: boiler"])[0])
    assert not np.array_equal(first[0], first[1])


def test_query_vectors_over_their_number_lets_the_one_asked_longest_ago_go() -> None:
    embedder = Counting()
    vectors = QueryVectors(embedder, kept=2)
    vectors.of(["a", "b"])
    vectors.of(["a"])
    vectors.of(["c"])
    assert embedder.asked == ["a", "b", "c"]
    vectors.of(["a", "c"])
    assert embedder.asked == ["a", "b", "c"]
    vectors.of(["b"])
    assert embedder.asked == ["a", "b", "c", "b"]


def test_query_vectors_more_at_once_than_are_kept_all_get_theirs() -> None:
    vectors = QueryVectors(HashEmbedder(), kept=2)
    queries = [f"query {i}" for i in range(9)]
    assert np.array_equal(vectors.of(queries), HashEmbedder().encode(queries))


def test_query_vectors_long_query_is_not_kept() -> None:
    embedder = Counting()
    vectors = QueryVectors(embedder)
    long = "x" * (LONGEST_KEPT + 1)
    assert np.array_equal(vectors.of([long]), vectors.of([long]))
    assert embedder.asked == [long, long]
