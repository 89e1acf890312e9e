import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from rl_cluster.datasets.text import clean
from rl_cluster.errors import ConfigError
from rl_cluster.retrieval.analysis import AnalysisSettings, Analyzer
from rl_cluster.retrieval.lexical import LexicalIndex, LexicalSettings
from rl_cluster.retrieval.ordering import top_positions
from rl_cluster.retrieval.snippets import snippet
from rl_cluster.retrieval.vector import VectorIndex

PLAIN = AnalysisSettings(stem=False, stop_words=False)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("See PRJ-4411-B.", ["see", "prj-4411-b", "prj", "4411", "b"]),
        ("v2.3.1, then", ["v2.3.1", "v2", "3", "1", "then"]),
        ("E_TIMEOUT!", ["e_timeout", "e", "timeout"]),
        ("well-known STRASSE Straße", ["well", "known", "strasse", "strasse"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("!!! ...", []),
    ],
)
def test_analyzer_keeps_identifiers_whole_and_in_parts(text, tokens):
    assert Analyzer(PLAIN).tokens(text) == tokens


def test_analyzer_default_stems_words_and_drops_stop_words():
    assert Analyzer().tokens("The pumps are restarting RUN-77") == ["pump", "restart", "run-77", "run", "77"]


@given(
    scores=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=30),
    k=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_top_positions_any_ties_equals_full_sort(scores, k):
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    assert top_positions(np.array(scores), np.arange(len(scores)), k).tolist() == expected


def test_lexical_no_shared_word_returns_nothing_and_k_may_exceed_size():
    index = LexicalIndex.build(["red pump", "blue valve", "red valve"])
    assert index.search("zebra", 10) == []
    assert [i for i, _ in index.search("red", 100)] == [0, 2]


def test_lexical_ties_at_boundary_go_by_position():
    index = LexicalIndex.build(["alpha beta"] * 7 + ["alpha alpha beta"])
    assert [i for i, _ in index.search("alpha", 4)] == [7, 0, 1, 2]


def test_lexical_excluded_never_shown_and_replaced():
    index = LexicalIndex.build(["alpha beta"] * 5)
    assert [i for i, _ in index.search("alpha", 3, {0, 2})] == [1, 3, 4]


def test_lexical_whole_identifier_beats_its_parts():
    texts = ["order 4711 of line ORN filed under K", "manual for ORN-4711-K", "ORN-4711-L and K-9 guide"]
    assert LexicalIndex.build(texts).search("ORN-4711-K", 1)[0][0] == 1


def test_lexical_order_agrees_with_reference_bm25():
    rng = np.random.default_rng(3)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 40, rng.integers(5, 30))) for _ in range(60)]
    config = LexicalSettings(k1=1.5, b=0.75, analysis=PLAIN)
    index, reference = LexicalIndex.build(texts, config), BM25Okapi([text.split() for text in texts], k1=1.5, b=0.75)
    # One rare word: both variants differ by a constant factor per term only.
    word = min((f"w{i}" for i in range(40)), key=lambda w: sum(w in t.split() for t in texts))
    expected = reference.get_scores([word])
    found = index.search(word, 60)
    assert len(found) == np.count_nonzero(expected > 0)
    ours = np.array([score for _, score in found])
    theirs = expected[[i for i, _ in found]]
    np.testing.assert_allclose(ours / ours[0], theirs / theirs[0], rtol=1e-5)


def test_lexical_saved_index_answers_the_same(tmp_path):
    index = LexicalIndex.build(["red pump", "blue valve", "red valve RV-7"])
    index.save(tmp_path / "lexical")
    again = LexicalIndex.load(tmp_path / "lexical")
    for query in ("red", "RV-7 valve", "zebra"):
        assert again.search(query, 3) == index.search(query, 3)


def test_lexical_documents_without_words_are_never_found():
    assert LexicalIndex.build(["...", ""]).search("word", 5) == []


@pytest.mark.parametrize("values", [{"method": "okapi"}, {"k1": 0}, {"b": 1.5}])
def test_lexical_settings_out_of_range_raise(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        LexicalSettings(**values)


def _unit(rows):
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_vector_ties_and_excluded_go_by_position():
    index = VectorIndex(_unit([[1, 0]] * 40 + [[0, 1]]))
    query = np.array([1, 0], np.float32)
    assert [i for i, _ in index.search(query, 3)] == [0, 1, 2]
    assert [i for i, _ in index.search(query, 3, {0, 2})] == [1, 3, 4]
    assert len(index.search(query, 100, {5})) == 40


@given(seed=st.integers(0, 1000), k=st.integers(1, 12), banned=st.sets(st.integers(0, 19), max_size=8))
@settings(max_examples=40, deadline=None)
def test_vector_any_exclusion_equals_full_sort(seed, k, banned):
    rng = np.random.default_rng(seed)
    vectors = _unit(rng.integers(1, 3, (20, 2)))  # few directions, hence many ties
    query = _unit([[1, 2]])[0]
    index = VectorIndex(vectors)
    full = dict(index.search(query, 20))
    expected = sorted((i for i in full if i not in banned), key=lambda i: (-full[i], i))[:k]
    assert [i for i, _ in index.search(query, k, banned)] == expected


def test_snippet_long_text_shows_window_with_most_query_words():
    text = " ".join(["filler"] * 50 + ["the", "restart", "procedure", "RB-12"] + ["filler"] * 50)
    analyzer = Analyzer()
    shown = snippet(text, analyzer.tokens("restarting RB-12"), analyzer, 10)
    assert len(shown.split()) == 10
    assert "restart" in shown
    assert "RB-12" in shown


def test_snippet_without_match_is_the_beginning():
    analyzer = Analyzer()
    assert snippet(" ".join(map(str, range(100))), analyzer.tokens("zebra"), analyzer, 5) == "0 1 2 3 4"


def test_clean_control_characters_and_newlines_gone():
    assert clean("a\nb\t\x00c\u200b  d\r") == "a b c d"
