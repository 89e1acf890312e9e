import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.scripts import UNSPACED
from rl_cluster.datasets.task import Document
from rl_cluster.datasets.text import clean
from rl_cluster.errors import SearchRequestError
from rl_cluster.retrieval.analysis import Analyzer
from rl_cluster.retrieval.index import IndexSettings, SearchIndex
from rl_cluster.retrieval.passages import LONG_TEXT, Words, passages
from rl_cluster.retrieval.snippets import WordTokens, best_window, best_window_of_parts, snippet


@given(text=st.text(max_size=300), size=st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_passages_any_text_is_covered_without_gaps(text: str, size: int) -> None:
    parts = passages(text, size)
    assert "".join(text[part.start : part.end] for part in parts) == text
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert all(len(Words(text[part.start : part.end])) <= size for part in parts)


@given(
    text=st.lists(
        st.sampled_from(
            ["pump", "PRJ-4411-B", "x" * 200, "caf\u00e9", "\u6570\u636e\u5e93", "\x1c", "\x07", " ", "\n", "\x85"]
        ),
        max_size=30,
    ).map(" ".join),
    start=st.integers(0, 20),
    cut=st.integers(0, 20),
)
@settings(max_examples=300, deadline=None)
def test_words_any_stretch_of_text_are_those_that_a_plain_scan_finds(text: str, start: int, cut: int) -> None:
    scan = re.compile(f"[{UNSPACED}]{{1,2}}|[^\\s{UNSPACED}]{{1,80}}")
    start = min(start, len(text))
    stop = max(start, len(text) - cut)
    expected = list(scan.finditer(text, start, stop))
    words = Words(text, start, stop)
    assert words.found == [match.group() for match in expected]
    for first in range(0, len(expected), 3):
        for last in range(first, len(expected), 4):
            assert words.span(first, last) == (expected[first].start(), expected[last].end())


def test_passages_end_with_a_sentence_where_one_ends_late() -> None:
    text = "One two three four five six seven. Eight nine ten eleven twelve."
    assert [text[p.start : p.end] for p in passages(text, 10)] == [text[:35], text[35:]]


def test_passages_chinese_text_counts_two_characters_as_a_word() -> None:
    text = "数据库连接超时。" * 10
    assert [p.end - p.start for p in passages(text, 10)] == [16] * 5


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    long = " ".join([*(f"filler{i}." for i in range(450)), "needle RB-12 here.", *(f"more{i}." for i in range(100))])
    documents = [Document("long", "Manual", long), Document("empty", "Title needle", ""), Document("x", "", "short")]
    folder = tmp_path_factory.mktemp("index") / "kb"
    return SearchIndex.build(
        Corpus.from_documents("kb", documents), IndexSettings(parts=("lexical",), snippet_words=10), folder
    )


def test_hit_names_the_part_that_its_snippet_is_from(index: SearchIndex) -> None:
    hit = index.search("lexical", "RB-12", 1)[0]
    assert (hit.doc_id, hit.part) == ("long", 3)
    assert "needle RB-12 here." in hit.snippet
    assert len(hit.snippet.split()) == 10
    part = index.read_document("long", hit.part)
    assert "needle RB-12 here." in part.text
    assert part.text == index.document("long").text[part.start : part.end]
    assert (part.part, part.parts, part.title) == (3, 3, "Manual")


def test_read_document_parts_join_to_the_whole(index: SearchIndex) -> None:
    parts = [index.read_document("long", i).text for i in (1, 2, 3)]
    assert "".join(parts) == index.document("long").text
    assert index.read_document("empty").text == ""
    assert [hit.part for hit in index.search("lexical", "title", 1)] == [1]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("nope",), "'nope'"),
        (("long", 0), "part is 0"),
        (("long", 4), "1 to 3"),
        (("long", True), "True"),
        (("x", 1, ("x",)), "must not be shown"),
    ],
)
def test_read_document_wrong_id_or_part_is_refused(index: SearchIndex, arguments: tuple, word: str) -> None:
    with pytest.raises(SearchRequestError, match=word):
        index.read_document(*arguments)


def test_snippet_text_without_spaces_keeps_the_budget_and_the_match() -> None:
    analyzer = Analyzer()
    text = "今天天气很好。" * 20 + "数据库连接超时" + "明天也很好。" * 20
    shown = snippet(text, analyzer.tokens("数据库"), analyzer, 10)
    assert len(shown) <= 20
    assert "数据库" in shown


def test_snippet_one_word_of_any_length_keeps_the_budget() -> None:
    assert len(snippet("x" * 100_000, ["y"], Analyzer(), 5)) == 80


def test_snippet_of_long_words_keeps_the_match_and_sixteen_characters_a_word() -> None:
    analyzer = Analyzer()
    address = "https://example.org/" + "a" * 50
    text = " ".join([*[address] * 30, "boiler", *[address] * 30])
    for words in (1, 4, 10):
        shown = snippet(text, analyzer.tokens("boilers"), analyzer, words)
        assert "boiler" in shown.split()
        assert len(shown.replace(" ", "")) <= 16 * words


FILLER = " ".join(f"Sentence {i} says nothing of interest." for i in range(40_000))


def _long_index(folder: Path, text: str) -> SearchIndex:
    corpus = Corpus.from_documents("kb", [Document("long", "", text), Document("short", "", "a short one")])
    return SearchIndex.build(corpus, IndexSettings(parts=("lexical",), snippet_words=12), folder)


def test_hit_in_a_long_document_analyses_a_bounded_part_and_shows_the_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle = len(FILLER) * 3 // 5
    text = f"{FILLER[:middle]} Then restart the boiler RB-12 by hand. {FILLER[middle:]}"
    assert len(text) > 20 * LONG_TEXT
    index = _long_index(tmp_path / "i", text)
    analysed: list[int] = []

    def counted(text: str, start: int = 0, stop: int | None = None) -> Words:
        words = Words(text, start, stop)
        analysed.append(words.stop - words.start)
        return words

    for module in ("index", "snippets"):
        monkeypatch.setattr(f"rl_cluster.retrieval.{module}.Words", counted)
    monkeypatch.setattr("rl_cluster.retrieval.index.passages", None)  # finding the parts anew takes a pass over all
    (hit,) = index.search("lexical", "restarting a boiler RB-12", 1)
    assert "restart the boiler RB-12" in hit.snippet
    assert 0 < sum(analysed) <= LONG_TEXT
    part = index.read_document("long", hit.part)
    assert "restart the boiler RB-12" in part.text
    assert sum(analysed) <= LONG_TEXT  # the parts of a long document are kept


def test_parts_of_a_long_document_are_those_of_its_text(tmp_path: Path) -> None:
    index = _long_index(tmp_path / "i", FILLER)
    again = SearchIndex.open(tmp_path / "i")
    expected = passages(FILLER)
    for number in (1, 2, len(expected) // 2, len(expected)):
        for opened in (index, again):
            part = opened.read_document("long", number)
            assert (part.start, part.end, part.parts) == (
                expected[number - 1].start,
                expected[number - 1].end,
                len(expected),
            )


def test_hit_in_a_long_document_without_a_match_shows_the_beginning(tmp_path: Path) -> None:
    text = " ".join(["Sentence"] * 12 + [FILLER])
    found = best_window_of_parts(text, passages(text), ["zebra"], WordTokens(Analyzer()), 12)
    assert text[slice(*found)] == " ".join(["Sentence"] * 12)


@given(place=st.integers(0, 900), size=st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_window_of_parts_holds_as_many_matches_as_that_of_the_whole(place: int, size: int) -> None:
    words = [f"word{i}" for i in range(1000)]
    words[place : place + 2] = ["boiler", "valve"]
    text = " ".join(words)
    analyzer = Analyzer()
    tokens = analyzer.tokens("boiler valve")
    whole = best_window(Words(text), tokens, WordTokens(analyzer), size)
    parts = best_window_of_parts(text, passages(text, 100), tokens, WordTokens(analyzer), size)
    assert ("boiler" in text[slice(*whole)]) == ("boiler" in text[slice(*parts)])
    assert len(Words(text[slice(*parts)])) <= size


@given(text=st.text(max_size=200), size=st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_snippet_any_text_is_one_clean_line(text: str, size: int) -> None:
    shown = snippet(text, ["a"], Analyzer(), size)
    assert shown == clean(shown)
    assert shown in clean(text)
