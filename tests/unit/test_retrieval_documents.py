import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.datasets.task import Document
from rl_cluster.errors import SearchRequestError
from rl_cluster.retrieval.analysis import Analyzer
from rl_cluster.retrieval.corpus import Corpus
from rl_cluster.retrieval.index import IndexSettings, SearchIndex
from rl_cluster.retrieval.passages import passages, word_spans
from rl_cluster.retrieval.snippets import snippet
from rl_cluster.retrieval.text import clean


@given(text=st.text(max_size=300), size=st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_passages_any_text_is_covered_without_gaps(text: str, size: int) -> None:
    parts = passages(text, size)
    assert "".join(text[part.start : part.end] for part in parts) == text
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert all(len(word_spans(text[part.start : part.end])) <= size for part in parts)


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
    assert len(snippet("x" * 100_000, ["y"], Analyzer(), 5)) == 400


@given(text=st.text(max_size=200), size=st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_snippet_any_text_is_one_clean_line(text: str, size: int) -> None:
    shown = snippet(text, ["a"], Analyzer(), size)
    assert shown == clean(shown)
    assert shown in clean(text)
