"""Skipping what cannot change the k best changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.retrieval import max_score
from rl_cluster.retrieval.max_score import Column, best_documents, best_of_all


def columns_of(rng: np.random.Generator, documents: int, terms: int, tied: bool) -> list[Column]:
    """Terms of very different frequency and weight; with `tied`, of few different weights."""
    found = []
    for _ in range(terms):
        held = np.sort(rng.choice(documents, int(rng.integers(1, documents + 1)), replace=False)).astype(np.int32)
        drawn = rng.integers(1, 6, len(held)) if tied else rng.random(len(held)) + 1e-3
        weights = (drawn * rng.choice([0.25, 1.0, 8.0])).astype(np.float32)
        times = int(rng.integers(1, 3))
        found.append(Column(held, weights, times, times * float(weights.max())))
    return found


@pytest.fixture(autouse=True)
def short_columns_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_score, "LONG_COLUMN", 20)


@given(
    st.integers(0, 2**32 - 1), st.integers(5, 400), st.integers(1, 6), st.integers(1, 30), st.booleans(), st.booleans()
)
@settings(max_examples=300, deadline=None)
def test_best_documents_equals_adding_every_column_whole(
    seed: int, documents: int, terms: int, k: int, tied: bool, filtered: bool
) -> None:
    rng = np.random.default_rng(seed)
    columns = columns_of(rng, documents, terms, tied)
    allowed = rng.random(documents) < 0.5 if filtered else None
    scores = np.zeros(documents)
    positions, found = best_documents(columns, k, scores, allowed)
    expected_positions, expected = best_of_all(columns, k, documents, allowed)
    np.testing.assert_array_equal(positions, expected_positions)
    np.testing.assert_array_equal(found, expected)
    assert not scores.any()


def test_best_documents_frequent_term_that_cannot_matter_is_looked_up_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []
    look_up = max_score._look_up
    monkeypatch.setattr(max_score, "_look_up", lambda *given: (looked_up.append(len(given[1])), look_up(*given)))
    rare = Column(np.arange(30, dtype=np.int32), np.linspace(5, 9, 30, dtype=np.float32), 1, 9.0)
    frequent = Column(np.arange(1000, dtype=np.int32), np.full(1000, 0.5, np.float32), 1, 0.5)
    positions, scores = best_documents([frequent, rare], 3, np.zeros(1000))
    assert positions.tolist() == [29, 28, 27]
    assert scores[0] == 9.5
    assert looked_up
    assert looked_up[0] < 10


def test_best_documents_tie_with_what_is_to_come_goes_to_the_first_document() -> None:
    """A document without the rare term reaches the third-best sum exactly, and comes before it."""
    rare = Column(np.arange(100, 130, dtype=np.int32), np.full(30, 2.0, np.float32), 1, 2.0)
    frequent = Column(np.arange(50, dtype=np.int32), np.full(50, 2.0, np.float32), 1, 2.0)
    positions, _ = best_documents([frequent, rare], 3, np.zeros(200))
    assert positions.tolist() == [0, 1, 2]
