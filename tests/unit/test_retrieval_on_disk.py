"""An index folder is whole or refused, and a build that stops loses no more than it must."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.task import Document
from rl_cluster.errors import IndexBuildError, IndexFormatError, ModelError
from rl_cluster.retrieval import embeddings
from rl_cluster.retrieval.analysis import AnalysisSettings
from rl_cluster.retrieval.arrays import load_array
from rl_cluster.retrieval.index import IndexSettings, Query, SearchIndex, content_id
from rl_cluster.retrieval.lexical import LexicalSettings
from rl_cluster.retrieval.vector_settings import VectorSettings
from tests.helpers.full_disk import full_disk

LEXICAL = IndexSettings(parts=("lexical",))
DOCS = [Document(f"d{i % 7}{i}", f"Title {i}", f"pump number {i} of line {i % 5}", {"line": i % 5}) for i in range(60)]


class CountingEmbedder:
    """Vectors by text length; counts its texts, and fails once at the block `fails_at`."""

    def __init__(self, fails_at: int | None = None):
        self.texts = 0
        self.calls = 0
        self.fails_at = fails_at

    def encode(self, texts):
        self.calls += 1
        if self.calls == self.fails_at:
            raise ModelError("out of order")
        self.texts += len(texts)
        rows = np.array([[1.0, len(text), 7.0] for text in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def corpus() -> Corpus:
    return Corpus.from_documents("kb", DOCS)


@pytest.mark.parametrize("free", [0, 100, 1000, 2000])
def test_build_full_disk_is_a_typed_error_and_leaves_nothing(corpus: Corpus, tmp_path, free: int) -> None:
    with full_disk(free), pytest.raises(IndexBuildError, match="make room"):
        SearchIndex.build(corpus, LEXICAL, tmp_path / "i")
    assert list(tmp_path.iterdir()) == []
    with full_disk(free), pytest.raises(IndexBuildError, match="make room"):
        SearchIndex.open_or_build(corpus, LEXICAL, tmp_path)
    assert SearchIndex.open_or_build(corpus, LEXICAL, tmp_path).search("lexical", "pump", 1)


@pytest.mark.parametrize(("kind", "file"), [("flat", "embeddings.npy"), ("hnsw", "vectors.faiss")])
def test_build_full_disk_at_the_vectors_is_a_typed_error_and_goes_on_later(tmp_path, kind: str, file: str) -> None:
    documents = [Document(f"d{i:04d}", "", f"pump {'x' * i}") for i in range(400)]
    corpus = Corpus.from_documents("kb", documents)
    settings = IndexSettings(parts=("vector",), vector=VectorSettings(kind))
    whole = SearchIndex.build(corpus, settings, tmp_path / "whole" / "i", embedder=CountingEmbedder())
    sizes = whole.manifest["files"]
    size = sizes.pop(f"vector/{file}")
    assert size > 4096
    cut, mended = CountingEmbedder(), CountingEmbedder()
    with full_disk(size - 1), pytest.raises(IndexBuildError, match="make room"):
        SearchIndex.open_or_build(corpus, settings, tmp_path / "root", embedder=cut)
    # Only embeddings are left, for the next try.
    assert [path.name.endswith(".embeddings") for path in (tmp_path / "root").iterdir()] in ([], [True])
    index = SearchIndex.open_or_build(corpus, settings, tmp_path / "root", embedder=mended)
    assert index.search("vector", "pump", 5) == whole.search("vector", "pump", 5)
    assert [path.name for path in (tmp_path / "root").iterdir()] == [index.index_id]


def test_build_into_a_folder_that_cannot_be_made_is_a_typed_error(corpus: Corpus, tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(IndexBuildError, match="cannot be written"):
        SearchIndex.build(corpus, LEXICAL, tmp_path / "file" / "i")


def test_open_every_file_missing_or_cut_is_refused(corpus: Corpus, tmp_path) -> None:
    settings = IndexSettings(vector=VectorSettings("hnsw"))
    SearchIndex.build(corpus, settings, tmp_path / "i", embedder=CountingEmbedder())
    files = sorted(path for path in (tmp_path / "i").rglob("*") if path.is_file())
    assert len(files) > 15
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        with pytest.raises(IndexFormatError, match="build again"):
            SearchIndex.open(tmp_path / "i")
        file.unlink()
        with pytest.raises(IndexFormatError, match="build again"):
            SearchIndex.open(tmp_path / "i")
        file.write_bytes(whole)
    assert SearchIndex.open(tmp_path / "i", embedder=CountingEmbedder()).search("hybrid", "pump", 1)


def test_open_every_file_damaged_within_its_size_is_refused(corpus: Corpus, tmp_path) -> None:
    SearchIndex.build(corpus, IndexSettings(), tmp_path / "i", embedder=CountingEmbedder())
    files = sorted(path for path in (tmp_path / "i").rglob("*") if path.is_file() and path.name != "manifest.json")
    for file in files:
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2), whole[:-1] + b"\xff"):
            if damaged == whole:
                continue
            file.write_bytes(damaged)
            with pytest.raises(
                IndexFormatError, match=rf"the file .*{file.name} is damaged; delete the folder and build again"
            ):
                SearchIndex.open(tmp_path / "i")
        file.write_bytes(whole)
    assert SearchIndex.open(tmp_path / "i", embedder=CountingEmbedder()).search("hybrid", "pump", 1)


@pytest.mark.parametrize(("bad", "wrong"), [(0, float("nan")), (30, float("inf"))])
def test_build_embedder_that_gives_no_numbers_is_a_model_error(
    corpus: Corpus, tmp_path, bad: int, wrong: float
) -> None:
    class Broken(CountingEmbedder):
        def encode(self, texts):
            rows = super().encode(texts)
            rows[bad % len(rows), 1] = wrong
            return rows

    with pytest.raises(ModelError, match=r"The embedder gave no finite numbers for the text '.*pump number"):
        SearchIndex.build(corpus, IndexSettings(parts=("vector",)), tmp_path / "i", embedder=Broken())
    assert not (tmp_path / "i").exists()
    index = SearchIndex.build(corpus, IndexSettings(parts=("vector",)), tmp_path / "j", embedder=CountingEmbedder())
    with pytest.raises(ModelError, match="no finite numbers for the text 'a question'"):
        SearchIndex.open(tmp_path / "j", embedder=Broken()).search("vector", "a question", 3)
    assert index.search("vector", "a question", 3)


def test_texts_of_a_block_are_whole_however_little_one_read_gives(
    corpus: Corpus, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux gives at most 2 GiB at once."""
    index = SearchIndex.build(corpus, LEXICAL, tmp_path / "i")
    whole = index.corpus.texts()
    pread = os.pread
    monkeypatch.setattr("os.pread", lambda file, size, offset: pread(file, min(size, 100), offset))
    assert index.corpus.texts() == whole


@pytest.mark.parametrize(
    "name", ["lexical/indices.csc.index.npy", "lexical/vocabulary.bytes.npy", "vector/embeddings.npy"]
)
def test_open_index_that_answers_wrongly_is_refused_and_rebuilt(
    corpus: Corpus, tmp_path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Files that are too large to be digested are tried by the known questions alone."""
    monkeypatch.setattr("rl_cluster.retrieval.manifest.DIGESTED_BYTES", -1)
    index = SearchIndex.open_or_build(corpus, IndexSettings(), tmp_path, embedder=CountingEmbedder())
    expected = index.search("hybrid", "pump 7", 5)
    file = tmp_path / index.index_id / name
    content = bytearray(file.read_bytes())
    content[128:] = reversed(content[128:])  # the header stays, and so does the length
    file.write_bytes(content)
    with pytest.raises(IndexFormatError, match="build again"):
        SearchIndex.open(file.parents[1], embedder=CountingEmbedder())
    again = SearchIndex.open_or_build(corpus, IndexSettings(), tmp_path, embedder=CountingEmbedder())
    assert again.search("hybrid", "pump 7", 5) == expected


@pytest.mark.parametrize(("key", "value"), [("format", 1), ("tokens", {"unicode": "1.0"}), ("settings", {"parts": []})])
def test_open_index_of_another_version_is_refused(corpus: Corpus, tmp_path, key: str, value: object) -> None:
    SearchIndex.build(corpus, LEXICAL, tmp_path / "i")
    manifest = tmp_path / "i" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), key: value}))
    with pytest.raises(IndexFormatError, match="build again"):
        SearchIndex.open(tmp_path / "i")


@pytest.mark.parametrize(("key", "value"), [("files", {}), ("files", []), ("answers", None), ("answers", {})])
def test_open_index_whose_manifest_names_nothing_to_check_is_refused(
    corpus: Corpus, tmp_path, key: str, value: object
) -> None:
    SearchIndex.build(corpus, LEXICAL, tmp_path / "kb")
    path = tmp_path / "kb" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(IndexFormatError, match="build again"):
        SearchIndex.open(tmp_path / "kb")


def test_open_header_of_an_array_damaged_is_refused(corpus: Corpus, tmp_path) -> None:
    SearchIndex.build(corpus, LEXICAL, tmp_path / "kb")
    path = tmp_path / "kb" / "lexical" / "indptr.csc.index.npy"
    held, places, refused = path.read_bytes(), range(10, 60), 0
    for place in places:
        path.write_bytes(held[:place] + bytes([held[place] ^ 0x10]) + held[place + 1 :])
        try:
            load_array(path, "int64", 1)
        except IndexFormatError:
            refused += 1
    # A blank may become another character that means nothing.
    assert refused > len(places) / 2


def test_known_answers_of_text_without_spaces_are_short(tmp_path) -> None:
    corpus = Corpus.from_documents("kb", [Document(f"d{i}", "", "泵阀管道" * 500) for i in range(3)])
    index = SearchIndex.build(corpus, LEXICAL, tmp_path / "kb")
    assert max(len(query) for query, _ in index.manifest["answers"]["lexical"]) <= 200


def test_content_id_depends_on_the_analyzer(corpus: Corpus) -> None:
    chosen = [AnalysisSettings(), AnalysisSettings(stem=False), AnalysisSettings(analyzer="de")]
    settings = [IndexSettings(parts=("lexical",), lexical=LexicalSettings(analysis=analysis)) for analysis in chosen]
    assert len({content_id(corpus, one) for one in settings}) == 3


def test_index_of_shuffled_documents_gives_the_same_answers(corpus: Corpus, tmp_path) -> None:
    shuffled = Corpus.from_documents("kb", [DOCS[i] for i in np.random.default_rng(0).permutation(len(DOCS))])
    one = SearchIndex.build(corpus, LEXICAL, tmp_path / "one")
    two = SearchIndex.build(shuffled, LEXICAL, tmp_path / "two")
    for query in ("pump", "line 3", "title number 12"):
        hits = one.search("lexical", query, 25)
        assert hits == two.search("lexical", query, 25)
        assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.doc_id))


def test_embeddings_interrupted_build_goes_on_where_it_stopped(
    corpus: Corpus, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "BLOCK_ROWS", 16)
    broken, mended, fresh = CountingEmbedder(fails_at=3), CountingEmbedder(), CountingEmbedder()
    with pytest.raises(ModelError):
        SearchIndex.open_or_build(corpus, IndexSettings(), tmp_path, embedder=broken)
    index = SearchIndex.open_or_build(corpus, IndexSettings(), tmp_path, embedder=mended)
    assert (broken.texts, mended.texts) == (32, len(DOCS) - 32)
    assert [path.name for path in tmp_path.iterdir()] == [index.index_id]
    whole = SearchIndex.build(corpus, IndexSettings(), tmp_path / "other" / "i", embedder=fresh)
    assert fresh.texts == len(DOCS)
    stored = [tmp_path / index.index_id / "vector/embeddings.npy", tmp_path / "other/i/vector/embeddings.npy"]
    assert stored[0].read_bytes() == stored[1].read_bytes()
    assert whole.search("vector", "pump", 5) == index.search("vector", "pump", 5)


def test_embeddings_of_equal_documents_are_made_once(corpus: Corpus, tmp_path) -> None:
    one, two, three = CountingEmbedder(), CountingEmbedder(), CountingEmbedder()
    SearchIndex.open_or_build(corpus, IndexSettings(), tmp_path, embedder=one)
    other_bm25 = IndexSettings(lexical=LexicalSettings(k1=0.9))
    SearchIndex.open_or_build(corpus, other_bm25, tmp_path, embedder=two)
    assert (one.texts, two.texts) == (len(DOCS), 0)
    SearchIndex.open_or_build(corpus, IndexSettings(embed_max_tokens=64), tmp_path, embedder=three)
    assert three.texts == len(DOCS)


def test_documents_of_the_same_text_tie_whatever_last_digits_the_embedder_gives(tmp_path) -> None:
    class Unsteady:
        def encode(self, texts):
            angles = [0.3 + 1e-4 * (7 * place % 5) for place in range(len(texts))]
            return np.array([[np.cos(angle), np.sin(angle)] for angle in angles], np.float32)

    copies = [Document(f"copy-{number}", "Title", "the same text") for number in (3, 1, 4, 0, 2)]
    corpus = Corpus.from_documents("kb", [*copies, Document("other", "Title", "another text")])
    index = SearchIndex.build(corpus, IndexSettings(parts=("vector",)), tmp_path / "i", embedder=Unsteady())
    found = [hit.doc_id for hit in index.search("vector", "question", 6)]
    assert [doc_id for doc_id in found if doc_id != "other"] == [f"copy-{number}" for number in range(5)]


def test_embedder_missing_is_refused_before_anything_is_written(corpus: Corpus, tmp_path) -> None:
    for name in ("bundled:none", "/no/such/folder"):
        with pytest.raises(ModelError, match="embedder"):
            SearchIndex.build(corpus, IndexSettings(embedder=name), tmp_path / "i")
    (tmp_path / "empty").mkdir()
    settings = IndexSettings(embedder=str(tmp_path / "empty"))
    with pytest.raises(ModelError, match="cannot be loaded"):
        SearchIndex.build(corpus, settings, tmp_path / "i")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_embedder_giving_a_wrong_shape_is_refused(corpus: Corpus, tmp_path) -> None:
    class Wrong:
        def encode(self, texts):
            return np.zeros((1, 3), np.float32)

    with pytest.raises(ModelError, match=r"\(1, 3\) for 60 texts"):
        SearchIndex.build(corpus, IndexSettings(), tmp_path / "i", embedder=Wrong())


@pytest.mark.parametrize("tool", ["lexical", "vector", "hybrid"])
def test_search_alone_batched_and_in_threads_gives_equal_answers(corpus: Corpus, tmp_path, tool: str) -> None:
    index = SearchIndex.build(corpus, IndexSettings(), tmp_path / "i", embedder=CountingEmbedder())
    queries = [f"pump {i} line {i % 5}" for i in range(40)] * 2
    alone = [index.search(tool, query, 7) for query in queries]
    assert index.search_many(tool, [Query(query, 7) for query in queries[::-1]]) == alone[::-1]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda query: index.search(tool, query, 7), queries)) == alone
