import json

import numpy as np
import pytest

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.task import Document
from rl_cluster.errors import ConfigError, IndexFormatError, ModelError, SearchRequestError
from rl_cluster.models.embedder import SentenceEmbedder, resolve_embedder
from rl_cluster.retrieval.index import IndexSettings, SearchIndex, content_id
from rl_cluster.retrieval.lexical import LexicalSettings

DOCS = [
    Document("p1", "Coffee machine", "The espresso maker on the third floor is cleaned every Friday."),
    Document("p2", "Payroll calendar", "Salaries are paid on the 25th; see FIN-2201 for exceptions."),
    Document("p3", "Remote access", "Connect from home through the encrypted tunnel client."),
    Document("p4", "Parking", "Electric cars charge in the basement, FIN-2201 does not apply."),
]
LEXICAL = IndexSettings(parts=("lexical",))


class CountingEmbedder:
    """Orders by text length; counts its calls."""

    def __init__(self):
        self.calls = 0

    def encode(self, texts):
        self.calls += 1
        rows = np.array([[1.0, len(text)] for text in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def corpus():
    return Corpus.from_documents("office", DOCS)


@pytest.fixture(scope="module")
def minilm_index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index") / "office"
    return SearchIndex.build(Corpus.from_documents("office", DOCS), IndexSettings(), folder)


@pytest.mark.slow
def test_vector_search_paraphrase_finds_by_meaning(minilm_index):
    hits = minilm_index.search("vector", "VPN when working at my apartment", 2)
    assert hits[0].doc_id == "p3"
    assert hits[0].title == "Remote access"
    assert hits[0].score > hits[1].score


def test_lexical_search_identifier_finds_by_word(minilm_index):
    assert {hit.doc_id for hit in minilm_index.search("lexical", "FIN-2201", 4)} == {"p2", "p4"}


def test_search_excluded_ids_are_replaced(minilm_index):
    hits = minilm_index.search("vector", "VPN when working at my apartment", 4, excluded=("p3", "unknown"))
    assert {hit.doc_id for hit in hits} == {"p1", "p2", "p4"}


@pytest.mark.parametrize(
    ("tool", "query", "k", "word"),
    [
        ("lexical", " ", 3, "empty"),
        ("vector", "x", 0, "k is 0"),
        ("vector", "x", 101, "101"),
        ("fuzzy", "x", 3, "fuzzy"),
    ],
)
def test_search_malformed_request_raises(minilm_index, tool, query, k, word):
    with pytest.raises(SearchRequestError, match=word):
        minilm_index.search(tool, query, k)


def test_document_unknown_id_raises(minilm_index):
    assert minilm_index.document("p2") == DOCS[1]
    with pytest.raises(SearchRequestError, match="'zz'"):
        minilm_index.document("zz")


def test_open_lexical_part_only_refuses_vector_search(corpus, tmp_path):
    SearchIndex.build(corpus, IndexSettings(), tmp_path / "i", embedder=CountingEmbedder())
    index = SearchIndex.open(tmp_path / "i", parts=("lexical",))
    assert index.search("lexical", "salaries", 1)[0].doc_id == "p2"
    with pytest.raises(SearchRequestError, match="'vector'"):
        index.search("vector", "salaries", 1)


def test_open_part_never_built_is_refused(corpus, tmp_path):
    SearchIndex.build(corpus, LEXICAL, tmp_path / "i")
    with pytest.raises(IndexFormatError, match="'vector'"):
        SearchIndex.open(tmp_path / "i", parts=("vector",))


def test_content_id_depends_on_documents_and_settings(corpus):
    other = Corpus.from_documents("office", DOCS[::-1])
    ids = {
        content_id(corpus, LEXICAL),
        content_id(other, LEXICAL),
        content_id(corpus, IndexSettings(parts=("lexical",), lexical=LexicalSettings(k1=1.3))),
        content_id(corpus, IndexSettings()),
    }
    assert len(ids) == 4
    assert content_id(Corpus.from_documents("office", DOCS), LEXICAL) in ids


def test_open_or_build_second_time_builds_nothing(corpus, tmp_path):
    first, second = CountingEmbedder(), CountingEmbedder()
    one = SearchIndex.open_or_build(corpus, IndexSettings(), tmp_path, embedder=first)
    two = SearchIndex.open_or_build(corpus, IndexSettings(), tmp_path, embedder=second)
    assert (first.calls, second.calls) == (1, 0)
    assert one.index_id == two.index_id
    assert [path.name for path in tmp_path.iterdir()] == [one.index_id]


@pytest.mark.parametrize("damage", ["no_manifest", "cut_file", "other_format"])
def test_damaged_folder_is_refused_by_open_and_rebuilt_by_open_or_build(corpus, tmp_path, damage):
    index = SearchIndex.open_or_build(corpus, LEXICAL, tmp_path)
    folder = tmp_path / index.index_id
    manifest = folder / "manifest.json"
    if damage == "no_manifest":
        manifest.unlink()
    elif damage == "cut_file":
        (folder / "documents.bin").write_bytes((folder / "documents.bin").read_bytes()[:-9])
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
    with pytest.raises(IndexFormatError, match="build again"):
        SearchIndex.open(folder)
    again = SearchIndex.open_or_build(corpus, LEXICAL, tmp_path)
    assert again.index_id == index.index_id
    assert [hit.doc_id for hit in again.search("lexical", "tunnel", 3)] == ["p3"]


def test_build_that_fails_leaves_no_folder(corpus, tmp_path):
    class Broken:
        def encode(self, texts):
            raise ModelError("out of order")

    with pytest.raises(ModelError):
        SearchIndex.build(corpus, IndexSettings(), tmp_path / "i", embedder=Broken())
    assert list(tmp_path.iterdir()) == []


def test_index_settings_unknown_part_raises():
    with pytest.raises(ConfigError, match="fuzzy"):
        IndexSettings(parts=("fuzzy",))


@pytest.mark.parametrize(("name", "word"), [("bundled:nope", "nope"), ("/no/such/folder", "neither a folder")])
def test_resolve_embedder_unknown_name_raises(name, word):
    with pytest.raises(ModelError, match=word):
        resolve_embedder(name)


def test_sentence_embedder_rows_have_length_one():
    rows = SentenceEmbedder().encode(["a short text", "another"])
    assert rows.shape == (2, 384)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
