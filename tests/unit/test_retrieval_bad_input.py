"""What no one should send or store, and what happens then: a typed error, or a defined result."""

from __future__ import annotations

import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.corpus import Corpus, read_corpus
from rl_cluster.datasets.task import Document
from rl_cluster.errors import DataError, SearchRequestError
from rl_cluster.retrieval.index import IndexSettings, SearchIndex

BIG = "pump valve PRJ-4411-B " * 250_000  # about 5 MB
DOCS = [
    Document("a", "Pumps", "A red pump."),
    Document("b", "", ""),
    Document("c", "  ", "\x00 nul \x00 byte"),
    Document("d", "Big", BIG),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    folder = tmp_path_factory.mktemp("index") / "kb"
    return SearchIndex.build(Corpus.from_documents("kb", DOCS), IndexSettings(parts=("lexical",)), folder)


@pytest.mark.parametrize(
    ("query", "k", "words"),
    [
        ("", 3, ["empty"]),
        (" \n\t", 3, ["empty"]),
        (None, 3, ["empty"]),
        ("x" * 100_000, 3, ["100000 characters", "32768"]),
        ("half \ud800 character", 3, ["U+D800", "at 5"]),
        ("x", 0, ["k is 0", "1 to 100"]),
        ("x", 10_000, ["k is 10000"]),
        ("x", -1, ["k is -1"]),
        ("x", True, ["True"]),
        ("x", 3.0, ["3.0"]),
    ],
)
def test_search_bad_request_is_refused_in_one_sentence(index: SearchIndex, query, k, words: list[str]) -> None:
    with pytest.raises(SearchRequestError) as error:
        index.search("lexical", query, k)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("doc_id", "says"),
    [
        ("a\nb | forged | line", r"line break, control character or turn of direction \(U\+000A\) in it"),
        ("a\u2028b", r"\(U\+2028\)"),
        ("a\x1b[31m", r"\(U\+001B\)"),
        ("a\u202eb", r"\(U\+202E\)"),
        (" a", "a blank at an end"),
        ("a\u00a0", "a blank at an end"),
        ("x" * 513, "513 characters"),
    ],
)
def test_corpus_id_that_breaks_the_lines_of_results_is_refused(doc_id: str, says: str) -> None:
    with pytest.raises(DataError, match=says) as error:
        Corpus.from_documents("kb", [Document("a", "", "x"), Document(doc_id, "", "y")])
    assert str(error.value).startswith("corpus 'kb': document 2 has the doc_id ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_corpus_id_with_inner_blanks_and_of_512_characters_is_taken() -> None:
    ids = ["docs/my file.md", "x" * 512, "می‌خواهم"]
    assert Corpus.from_documents("kb", [Document(doc_id, "", "x") for doc_id in ids]).doc_ids == ids


@pytest.mark.parametrize("query", ["...", "\x00", "zebra", "the of and", "🤖", "'\"; DROP TABLE"])
def test_search_query_without_known_words_finds_nothing(index: SearchIndex, query: str) -> None:
    assert index.search("lexical", query, 5) == []


def test_search_nul_in_query_separates_words(index: SearchIndex) -> None:
    assert [hit.doc_id for hit in index.search("lexical", "red\x00pump", 5)] == ["a", "d"]


def test_search_longest_query_is_answered(index: SearchIndex) -> None:
    assert index.search("lexical", ("red pump " * 4000)[:32_768], 1)[0].doc_id == "a"


def test_search_stored_nul_is_not_shown(index: SearchIndex) -> None:
    hit = index.search("lexical", "byte", 5)[0]
    assert (hit.doc_id, hit.title, hit.snippet) == ("c", "", "nul byte")


def test_search_empty_document_is_never_found_but_can_be_read(index: SearchIndex) -> None:
    assert "b" not in {hit.doc_id for hit in index.search("lexical", "pump valve nul", 10)}
    assert index.read_document("b").text == ""


def test_search_document_of_five_megabytes_is_found_and_cut(index: SearchIndex) -> None:
    started = time.process_time()
    hit = index.search("lexical", "valve PRJ-4411-B", 1)[0]
    assert time.process_time() - started < 10
    assert hit.doc_id == "d"
    assert len(hit.snippet) < 400
    assert index.read_document("d").parts > 1000


@pytest.mark.parametrize("doc_id", ["", None, 5.5])
def test_corpus_missing_id_is_refused(doc_id) -> None:
    with pytest.raises(DataError, match="document 1"):
        Corpus.from_documents("kb", [Document(doc_id, "", "x")])


def test_corpus_duplicate_id_is_refused() -> None:
    with pytest.raises(DataError, match=r"document 2 repeats.*'a'.*document 1"):
        Corpus.from_documents("kb", [Document("a", "", "x"), Document("a", "", "y")])


@pytest.mark.parametrize(
    "document", [Document("a", "\ud800", "x"), Document("a", "", "\udfff"), Document("a", "", "x", {"k": "\ud9ab"})]
)
def test_corpus_half_a_character_is_refused(document: Document) -> None:
    with pytest.raises(DataError, match=r"document 1 \('a'\) has half a character"):
        Corpus.from_documents("kb", [document])


def test_read_corpus_jsonl_of_another_encoding_names_the_row(tmp_path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"id": "a", "text": "x"}\n{"id": "b", "text": "caf\xe9"}\n')
    with pytest.raises(DataError, match="row 2 is not UTF-8"):
        read_corpus(path)


@pytest.mark.parametrize("metadata", ['{"a": ' * 100_000 + "1" + "}" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_read_corpus_jsonl_that_no_parser_takes_names_the_row(tmp_path, metadata: str) -> None:
    (tmp_path / "c.jsonl").write_text('{"doc_id": "d1", "text": "t", "metadata": ' + metadata + "}\n")
    with pytest.raises(DataError, match="row 1 is not JSON"):
        read_corpus(tmp_path / "c.jsonl")


def test_read_corpus_parquet_of_another_encoding_is_refused(tmp_path) -> None:
    texts = pa.array([b"fine", b"caf\xe9"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"doc_id": ["a", "b"], "text": texts}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match="not UTF-8"):
        read_corpus(tmp_path / "c.parquet")


def test_read_corpus_nul_and_odd_numbers_in_metadata_are_kept(tmp_path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"id": "a", "text": "n\x00l", "metadata": {"x": float("nan")}}))
    index = SearchIndex.build(read_corpus(path), IndexSettings(parts=("lexical",)), tmp_path / "i")
    assert index.document("a").text == "n\x00l"
    with pytest.raises(SearchRequestError, match="no field 'x'"):
        index.search("lexical", "n", 1, filters={"x": 1.0})
