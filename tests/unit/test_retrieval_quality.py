"""Published figures of word search hold, and the approximate vector indexes find what the exact one does.

The collections (MIRACL Yoruba, XQuAD) lie in the folder that RL_CLUSTER_TEST_DATA names, by default `shared/data` beside the
repository; without them their tests are skipped. See benchmarks/search_quality.py for what lies there.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search_quality import (
    LOWEST_XQUAD,
    LOWEST_YORUBA,
    PUBLISHED,
    TOLERANCE,
    default_settings,
    figures,
    miracl,
    xquad_file,
)
from rl_cluster.composition import load_config
from rl_cluster.retrieval.analysis import AnalysisSettings
from rl_cluster.retrieval.lexical import LexicalSettings
from rl_cluster.retrieval.settings import settings_from_config
from rl_cluster.retrieval.vector import VectorIndex
from tests.helpers.real_data import folder

pytestmark = pytest.mark.slow


def test_miracl_yoruba_has_the_published_figures_and_more_by_default() -> None:
    texts, questions = miracl(folder("miracl-yo"))
    plain = LexicalSettings("lucene", 0.9, 0.4, analysis=AnalysisSettings(analyzer="whitespace"))
    ndcg, recall = figures(texts, questions, plain)
    assert ndcg == pytest.approx(PUBLISHED["ndcg"], abs=TOLERANCE)
    assert recall == pytest.approx(PUBLISHED["recall"], abs=TOLERANCE)
    assert figures(texts, questions, default_settings("yo"))[0] >= LOWEST_YORUBA


@pytest.mark.parametrize("locale", sorted(LOWEST_XQUAD))
def test_xquad_default_analyzer_finds_the_paragraph(locale: str) -> None:
    texts, questions = xquad_file(folder("xquad") / f"xquad.{locale}.json")
    assert figures(texts, questions, default_settings(locale))[0] >= LOWEST_XQUAD[locale]


@pytest.mark.parametrize("kind", ["hnsw", "ivf_pq"])
def test_vector_kind_as_shipped_finds_95_percent_of_the_exact_results(kind: str) -> None:
    dimensions, size = 384, 10_500
    rng = np.random.default_rng(0)
    # Texts lie in clusters, and those on a low-dimensional surface, as embeddings do.
    basis = rng.normal(size=(48, dimensions)).astype(np.float32)
    centres = rng.normal(size=(400, 48)).astype(np.float32)

    def drawn(number: int) -> np.ndarray:
        near = centres[rng.integers(0, len(centres), number)] + 0.7 * rng.normal(size=(number, 48))
        rows = (near @ basis).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    rows, queries = drawn(size), drawn(100)
    shipped = settings_from_config(load_config([f"search/vector={kind}"]).search.model_dump(), ["en"]).vector
    exact, approximate = VectorIndex(rows), VectorIndex(rows, shipped)
    found = [
        len({i for i, _ in exact.search(query, 10)} & {i for i, _ in approximate.search(query, 10)})
        for query in queries
    ]
    assert np.mean(found) / 10 >= 0.95
