import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.corpus import Corpus, corpus_names, read_corpus, write_corpus
from rl_cluster.datasets.task import Document
from rl_cluster.errors import DataError

DOCS = [
    Document("a", "First", "one two", {"kind": "wiki", "nested": {"x": 1}}),
    Document("b", "", "Übung macht den Meister", {}),
    Document("c", "Third", "", {}),
]


def _jsonl(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_corpus_written_to_parquet_reads_back_equal(tmp_path):
    assert write_corpus(tmp_path / "c.parquet", "kb", iter(DOCS)) == 3
    corpus = read_corpus(tmp_path / "c.parquet")
    assert (corpus.name, list(corpus)) == ("kb", DOCS)
    assert corpus.get("b") == DOCS[1]
    assert corpus.get("x") is None
    assert corpus.digest() == Corpus.from_documents("kb", DOCS).digest()


def test_corpus_digest_changes_with_any_field():
    base = Corpus.from_documents("kb", DOCS).digest()
    changed = [Document("a", "First", "one two", {"kind": "mail"}), *DOCS[1:]]
    moved = [Document("a", "First one", "two", DOCS[0].metadata), *DOCS[1:]]
    assert len({base, *(Corpus.from_documents("kb", docs).digest() for docs in (changed, moved))}) == 3


@pytest.mark.parametrize("key", ["doc_id", "id", "_id"])
def test_read_corpus_jsonl_takes_usual_id_keys(tmp_path, key):
    path = _jsonl(tmp_path / "mine.jsonl", [{key: "7", "title": "T", "text": "x"}, {key: 8, "text": "y"}])
    corpus = read_corpus(path)
    assert (corpus.name, corpus.doc_ids) == ("mine", ["7", "8"])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], ["row 2", "'a'", "row 1", "unique"]),
        ([{"id": "a", "text": "x"}, {"title": "t", "text": "y"}], ["row 2", "no doc_id"]),
        ([{"id": "a", "text": 5}], ["row 1", "text 5", "string"]),
        ([{"id": 5.5, "text": "x"}], ["row 1", "doc_id 5.5", "strings"]),
        ([{"id": True, "text": "x"}], ["row 1", "doc_id True", "strings"]),
        ([{"id": 5, "text": "x"}, {"id": "5", "text": "x"}], ["row 2", "'5'", "row 1", "unique"]),
        ([{"id": "a", "text": "x", "metadata": [1]}], ["row 1", "[1]", "object"]),
        ([], ["no document"]),
    ],
)
def test_read_corpus_malformed_names_row_value_and_mend(tmp_path, rows, words):
    with pytest.raises(DataError) as error:
        read_corpus(_jsonl(tmp_path / "c.jsonl", rows))
    assert all(word in str(error.value) for word in ["c.jsonl", *words])


def test_read_corpus_missing_file_or_broken_line_raises(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_corpus(tmp_path / "none.jsonl")
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": "x"}\n{oops', encoding="utf-8")
    with pytest.raises(DataError, match="row 2 is not JSON"):
        read_corpus(tmp_path / "c.jsonl")


def test_write_corpus_failing_midway_leaves_no_file(tmp_path):
    with pytest.raises(DataError, match="document 4 repeats"):
        write_corpus(tmp_path / "c.parquet", "kb", [*DOCS, DOCS[0]])
    assert list(tmp_path.iterdir()) == []


def test_corpus_locales_are_those_that_documents_say_and_no_part_of_the_digest(tmp_path):
    said = [replace(DOCS[0], locale="de"), replace(DOCS[1], locale="de-AT"), DOCS[2]]
    write_corpus(tmp_path / "c.parquet", "kb", said)
    corpus = read_corpus(tmp_path / "c.parquet")
    assert list(corpus) == said
    assert corpus.locales == ["de", "de-AT"]
    assert corpus.digest() == Corpus.from_documents("kb", DOCS).digest()
    assert Corpus.from_documents("kb", DOCS).locales == []


def test_read_corpus_locale_may_be_left_out_but_is_a_string(tmp_path):
    rows = [
        {"id": "a", "text": "x"},
        {"id": "b", "text": "y", "locale": "vi"},
        {"id": "c", "text": "z", "locale": None},
    ]
    assert read_corpus(_jsonl(tmp_path / "c.jsonl", rows)).locales == ["vi"]
    with pytest.raises(DataError, match="has the locale 5, a int"):
        read_corpus(_jsonl(tmp_path / "c.jsonl", [{"id": "a", "text": "x", "locale": 5}]))
    pq.write_table(pa.table({"doc_id": ["a"], "text": ["x"]}), tmp_path / "c.parquet")
    assert read_corpus(tmp_path / "c.parquet").locales == []


def test_corpus_names_are_those_of_the_rows(tmp_path):
    pq.write_table(
        pa.table({"doc_id": ["a", "b"], "text": ["x", "y"], "corpus": ["two", "one"]}), tmp_path / "c.parquet"
    )
    assert corpus_names(tmp_path / "c.parquet") == ["one", "two"]
    pq.write_table(pa.table({"doc_id": ["a"], "text": ["x"]}), tmp_path / "d.parquet")
    assert corpus_names(tmp_path / "d.parquet") == []
    with pytest.raises(DataError, match="no such file"):
        corpus_names(tmp_path / "e.parquet")
