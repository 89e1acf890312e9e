"""Both backends against formulas written out anew in float64, against bm25s' own index, and against each other."""

from __future__ import annotations

import math
from collections import Counter

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.config_search import BM25_VARIANTS
from rl_cluster.errors import ConfigError, IndexFormatError
from rl_cluster.retrieval.analysis import AnalysisSettings
from rl_cluster.retrieval.lexical import VARIANTS, LexicalIndex, LexicalSettings
from rl_cluster.retrieval.ordering import top_above

WHITESPACE = AnalysisSettings(analyzer="whitespace")
ALL = [(backend, method) for backend, methods in VARIANTS.items() for method in methods]


def _collection(seed: int, size: int, words: int = 60) -> list[str]:
    """Texts of Zipf-like words; some are empty and some words stand in most texts."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, words + 1)
    lengths = rng.integers(0, 25, size)
    return [" ".join(f"w{i}" for i in rng.choice(words, n, p=weights / weights.sum())) for n in lengths]


def reference_scores(
    texts: list[str], query: str, backend: str, method: str, k1: float, b: float, delta: float
) -> dict[int, float]:
    """Position -> score of every document that shares a token with the query.

    Formulas of Kamphuis et al. (ECIR 2020) and Trotman et al. (ADCS 2014); rank-bm25 gives rare idfs a floor of a quarter of
    their mean, and multiplies BM25L by the count once more.
    """
    documents = [Counter(text.split()) for text in texts]
    lengths = [sum(document.values()) for document in documents]
    average = sum(lengths) / len(lengths)
    n_docs = len(texts)
    df = Counter(token for document in documents for token in document)

    def okapi_idf(token: str) -> float:
        def raw(n: int) -> float:
            return math.log((n_docs - n + 0.5) / (n + 0.5))

        value = raw(df[token])
        return value if value >= 0 else 0.25 * sum(map(raw, df.values())) / len(df)

    idf = {
        "lucene": lambda t: math.log(1 + (n_docs - df[t] + 0.5) / (df[t] + 0.5)),
        "robertson": lambda t: max(0.0, math.log((n_docs - df[t] + 0.5) / (df[t] + 0.5))),
        "atire": lambda t: math.log(n_docs / df[t]),
        "okapi": okapi_idf,
        "bm25l": lambda t: math.log((n_docs + 1) / (df[t] + 0.5)),
        "bm25+": lambda t: math.log((n_docs + 1) / df[t]),
    }[method]

    def frequency_part(tf: int, length: int) -> float:
        norm = 1 - b + b * length / average
        if method in ("lucene", "robertson"):
            return tf / (tf + k1 * norm)
        if method in ("atire", "okapi"):
            return tf * (k1 + 1) / (tf + k1 * norm)
        if method == "bm25l":
            c = tf / norm
            part = (k1 + 1) * (c + delta) / (k1 + c + delta)
            return tf * part if backend == "rank_bm25" else part
        return tf * (k1 + 1) / (tf + k1 * norm) + delta

    tokens = [token for token in query.split() if token in df]
    return {
        i: sum(idf(token) * frequency_part(document[token], lengths[i]) for token in tokens)
        for i, document in enumerate(documents)
        if any(token in document for token in tokens)
    }


@pytest.mark.parametrize(("backend", "method"), ALL)
def test_bm25_every_variant_agrees_with_float64_reference(backend: str, method: str) -> None:
    texts = _collection(1, 80)
    rng = np.random.default_rng(2)
    for k1, b, delta in ((1.2, 0.75, 1.0), (0.9, 0.4, 0.5), (2.0, 0.0, 0.0), (1.5, 1.0, 1.0)):
        chosen = LexicalSettings(method, k1, b, delta, backend, WHITESPACE)
        index = LexicalIndex.build(texts, chosen)
        for _ in range(20):
            query = " ".join(f"w{i}" for i in rng.integers(0, 63, 5))  # w60 to w62 occur nowhere
            found = index.search(query, 80)
            expected = reference_scores(texts, query, backend, method, k1, b, delta)
            assert {i for i, _ in found} == set(expected)
            wanted = np.array([expected[i] for i, _ in found])
            np.testing.assert_allclose([score for _, score in found], wanted, rtol=1e-5, atol=1e-6)
            assert (np.diff(wanted) <= 1e-6).all()  # an order that the expected scores allow


@pytest.mark.parametrize("method", VARIANTS["bm25s"])
def test_bm25s_weights_equal_those_of_its_own_index(tmp_path, method: str) -> None:
    texts = _collection(3, 120)
    ours = LexicalIndex.build(texts, LexicalSettings(method, 1.4, 0.6, 0.7, "bm25s", WHITESPACE))
    ours.save(tmp_path)
    assert bm25s.BM25.load(str(tmp_path)).scores["num_docs"] == 120
    theirs = bm25s.BM25(method=method, k1=1.4, b=0.6, delta=0.7)
    theirs.index([text.split() for text in texts], show_progress=False)
    for query in ("w0", "w1 w7 w7 w30", "w59 w2"):
        scores = theirs.get_scores(list[str](query.split()))
        for position, score in ours.search(query, 120):
            assert score == pytest.approx(scores[position], rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_bm25s_and_rank_bm25_agree_on_a_thousand_queries() -> None:
    texts = _collection(5, 150, words=400)
    fast, slow = (
        LexicalIndex.build(texts, LexicalSettings("bm25+", 1.5, 0.75, 1.0, backend, WHITESPACE))
        for backend in ("bm25s", "rank_bm25")
    )
    rng = np.random.default_rng(6)
    for _ in range(1000):
        query = " ".join(f"w{i}" for i in rng.integers(0, 400, rng.integers(1, 7)))
        ours, theirs = fast.search(query, 10), slow.search(query, 10)
        np.testing.assert_allclose([s for _, s in ours], [s for _, s in theirs], rtol=1e-5)
        # The same order, but for scores that only differ by float32's rounding.
        for (i, score), (j, other) in zip(ours, theirs, strict=True):
            assert i == j or score == pytest.approx(other, rel=1e-6)


def test_lexical_settings_variant_of_another_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"okapi.*bm25s has the variants lucene, robertson"):
        LexicalSettings("okapi", backend="bm25s")
    with pytest.raises(ConfigError, match=r"lucene.*rank_bm25 has the variants okapi"):
        LexicalSettings("lucene", backend="rank_bm25")
    with pytest.raises(ConfigError, match="tantivy"):
        LexicalSettings(backend="tantivy")


def test_config_knows_the_variants_of_the_backends() -> None:
    assert BM25_VARIANTS == VARIANTS


@pytest.mark.parametrize("method", ["robertson", "atire"])
def test_bm25s_word_of_every_document_still_matches(method: str) -> None:
    index = LexicalIndex.build(["red pump", "red valve", "red"], LexicalSettings(method))
    assert index.search("red", 2) == [(0, 0.0), (1, 0.0)]
    assert [i for i, _ in index.search("red valve", 3)] == [1, 0, 2]


@pytest.mark.parametrize("backend", list(VARIANTS))
def test_lexical_any_backend_saved_index_answers_the_same(tmp_path, backend: str) -> None:
    index = LexicalIndex.build(_collection(7, 40), LexicalSettings("bm25+", backend=backend, analysis=WHITESPACE))
    index.save(tmp_path / "lexical")
    again = LexicalIndex.load(tmp_path / "lexical")
    for query in ("w0", "w3 w4 w5", "zebra"):
        assert again.search(query, 9, {0, 1}) == index.search(query, 9, {0, 1})


@pytest.mark.parametrize("backend", list(VARIANTS))
def test_lexical_any_backend_documents_without_words_are_never_found(backend: str) -> None:
    method = VARIANTS[backend][0]
    assert LexicalIndex.build(["...", ""], LexicalSettings(method, backend=backend)).search("word", 5) == []
    found = LexicalIndex.build(["", "word", ""], LexicalSettings(method, backend=backend)).search("word", 5)
    assert [i for i, _ in found] == [1]


def test_lexical_cut_or_missing_file_is_refused(tmp_path) -> None:
    index = LexicalIndex.build(_collection(8, 40))
    for name in ("data.csc.index.npy", "vocabulary.bytes.npy", "lexical.json", "term_numbers.npy"):
        index.save(tmp_path / name)
        (tmp_path / name / name).write_bytes((tmp_path / name / name).read_bytes()[:20])
        with pytest.raises(IndexFormatError, match="build"):
            LexicalIndex.load(tmp_path / name)
        (tmp_path / name / name).unlink()
        with pytest.raises(IndexFormatError, match="build again"):
            LexicalIndex.load(tmp_path / name)


@pytest.mark.parametrize("method", VARIANTS["bm25s"])
@pytest.mark.parametrize("number", [1, 3, 40])
def test_cut_stretches_together_give_the_scores_of_the_whole(tmp_path, method: str, number: int) -> None:
    index = LexicalIndex.build(_collection(9, 40), LexicalSettings(method, analysis=WHITESPACE))
    bounds = [(40 * i // number, 40 * (i + 1) // number) for i in range(number)]
    stretches = [index.cut(*bound) for bound in bounds]
    stretches[-1].save(tmp_path / "last")
    stretches[-1] = LexicalIndex.load(tmp_path / "last")
    for query in ("w0 w1", "w2 w2 w9 w30", "w44"):
        for k in (1, 5, 40):
            excluded = {0, 7, 39}
            found = [
                (start + position, score)
                for stretch, (start, stop) in zip(stretches, bounds, strict=True)
                for position, score in stretch.search(query, k, {i - start for i in excluded if start <= i < stop})
            ]
            best = sorted(found, key=lambda one: (-one[1], one[0]))[:k]
            assert best == index.search(query, k, excluded)


def test_cut_of_rank_bm25_is_refused() -> None:
    with pytest.raises(ConfigError, match="bm25s"):
        LexicalIndex.build(["a", "b"], LexicalSettings("okapi", backend="rank_bm25")).cut(0, 1)


@given(seed=st.integers(0, 500), k=st.integers(1, 30), banned=st.sets(st.integers(0, 29), max_size=25))
@settings(max_examples=60, deadline=None)
def test_lexical_any_exclusion_equals_full_sort(seed: int, k: int, banned: set[int]) -> None:
    texts = _collection(seed, 30, words=6)  # few words, hence many ties
    index = LexicalIndex.build(texts, LexicalSettings(analysis=WHITESPACE))
    full = dict(index.search("w0 w3", 30))
    expected = sorted((i for i in full if i not in banned), key=lambda i: (-full[i], i))[:k]
    assert [i for i, _ in index.search("w0 w3", k, banned)] == expected


@pytest.mark.parametrize("k", [1, 10, 100])
def test_top_above_large_collection_equals_full_sort(k: int) -> None:
    rng = np.random.default_rng(k)
    for share in (0.0, 0.0005, 0.5, 1.0):
        scores = np.where(rng.random(40_000) < share, rng.integers(1, 50, 40_000), 0).astype(np.float64)
        expected = sorted(np.flatnonzero(scores > 0), key=lambda i: (-scores[i], i))[:k]
        assert top_above(scores, 0.0, k).tolist() == expected


def test_lexical_query_words_in_any_order_give_equal_scores() -> None:
    index = LexicalIndex.build(_collection(11, 60), LexicalSettings(analysis=WHITESPACE))
    assert index.search("w1 w5 w9 w2 w20", 20) == index.search("w20 w2 w9 w1 w5", 20)
