"""An index in shards answers as the whole does, whatever is asked; a folder of shards is whole or written again."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.task import Document
from rl_cluster.errors import ConfigError, IndexBuildError, IndexFormatError, SearchRequestError
from rl_cluster.retrieval.index import IndexSettings, SearchIndex
from rl_cluster.retrieval.manifest import read_manifest
from rl_cluster.retrieval.memory import open_bytes
from rl_cluster.retrieval.shards import cut, shard_bytes, shard_folder
from rl_cluster.service import catalog
from rl_cluster.service.catalog import IndexCatalog
from rl_cluster.service.merging import described, merged
from rl_cluster.service.values import DocumentAnswer, DocumentRequest, Reply, Request, SearchAnswer, SearchRequest
from tests.helpers.configuration import load_config
from tests.helpers.full_disk import full_disk
from tests.helpers.small_index import HashEmbedder, documents

NUMBER = 4
# Many ties, a field that only the last shard has, and a text that is too long to be analysed whole.
DOCS = [
    *documents(1, 90),
    *(Document(f"tie{i:02d}", "", "pump and valve") for i in range(20)),
    Document("zz", "Late", "pump " + "filler " * 20_000 + "boiler RB-12", {"only": "here"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index") / "kb"
    SearchIndex.build(Corpus.from_documents("kb", DOCS), IndexSettings(), folder, embedder=HashEmbedder())
    cut(folder, NUMBER)
    return folder


def catalogs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[IndexCatalog, list[IndexCatalog]]:
    """The whole, and each shard as its replica opens it; with the embedder that they were built with."""
    opened = SearchIndex.open

    def with_hashes(*asked: Any, **named: Any) -> SearchIndex:
        return opened(*asked, **{**named, "embedder": HashEmbedder()})

    monkeypatch.setattr(catalog.SearchIndex, "open", with_hashes)
    found = [IndexCatalog(("lexical", "vector")) for _ in range(NUMBER + 1)]
    found[0].apply({"kb": str(folder)})
    for shard in range(NUMBER):
        found[1 + shard].apply({"kb": shard_folder(folder, shard, NUMBER)})
    return found[0], found[1:]


def same(one: Reply | None, other: Reply) -> bool:
    if isinstance(one, Exception):
        return (type(one), str(one)) == (type(other), str(other))
    return one == other


TEXTS = ("pump", "how is the pump of line 7 kept", "valve", "boiler RB-12", "zebra", "snapshot")
FILTERS = (None, {"kind": "wiki"}, {"year": {"gte": 2004, "lt": 2010}}, {"only": "here"}, {"only": 5}, {"nope": 1})


@pytest.mark.parametrize("tool", ["bm25_search", "vector_search"])
def test_answers_of_shards_merged_are_those_of_the_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    whole, shards = catalogs(folder, monkeypatch)
    requests: list[Request] = [
        SearchRequest(tool, text, k, excluded, filters)
        for text, k, excluded, filters in itertools.product(TEXTS, (1, 7, 100), ((), ("d000", "tie03", "zz")), FILTERS)
    ]
    requests += [SearchRequest(tool, "", 3), SearchRequest(tool, "x", 0), SearchRequest(tool, "x", 3, index="no")]
    expected = whole.answer(requests)
    replies = zip(*(shard.answer(requests) for shard in shards), strict=True)
    found = 0
    for request, one, parts in zip(requests, expected, replies, strict=True):
        assert same(merged(request, parts), one), request
        found += isinstance(one, SearchAnswer) and bool(one.hits)
    assert found > 80


def test_documents_of_shards_are_those_of_the_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, shards = catalogs(folder, monkeypatch)
    requests: list[Request] = [DocumentRequest(document.doc_id) for document in DOCS]
    requests += [DocumentRequest("zz", 50), DocumentRequest("zz", 99_999), DocumentRequest("nope")]
    requests += [DocumentRequest("d001", excluded=("d001",))]
    replies = list(zip(*(shard.answer(requests) for shard in shards), strict=True))
    for request, one, parts in zip(requests, whole.answer(requests), replies, strict=True):
        assert same(merged(request, parts), one), request
    assert isinstance(merged(requests[0], replies[0]), DocumentAnswer)
    assert described([shard.describe() for shard in shards]) == whole.describe()


def test_replies_from_two_snapshots_are_not_merged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Corpus.from_documents("kb", documents(2, 90))
    SearchIndex.build(newer, IndexSettings(), tmp_path / "newer", embedder=HashEmbedder())
    cut(tmp_path / "newer", NUMBER)
    _, old = catalogs(folder, monkeypatch)
    _, new = catalogs(tmp_path / "newer", monkeypatch)
    request = SearchRequest("bm25_search", "pump", 5)
    replies = [shard.answer([request])[0] for shard in (*old[:2], *new[2:])]
    assert merged(request, replies) is None
    assert isinstance(merged(request, [shard.answer([request])[0] for shard in new]), SearchAnswer)
    refusal = SearchRequestError("wrong")
    assert merged(request, [replies[0], refusal]) is refusal


def test_cut_again_writes_nothing_and_damage_is_mended(folder: Path) -> None:
    files = sorted((folder / f"shards-{NUMBER}").rglob("*"))
    times = [path.stat().st_mtime_ns for path in files]
    cut(folder, NUMBER)
    assert [path.stat().st_mtime_ns for path in files] == times
    (Path(shard_folder(folder, 1, NUMBER)) / "documents.bin").write_bytes(b"")
    cut(folder, NUMBER)
    assert (
        len(SearchIndex.open(shard_folder(folder, 1, NUMBER), ("lexical",)).corpus)
        == len(DOCS) * 2 // NUMBER - len(DOCS) // NUMBER
    )
    assert len(SearchIndex.open(folder, ()).corpus) == len(DOCS)


def test_cut_that_is_not_possible_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(IndexFormatError, match=r"is not cut into 3 shards; build it with search\.shards=3"):
        shard_folder(folder, 0, 3)
    assert shard_folder(folder, 0, 1) == str(folder)
    with pytest.raises(ConfigError, match=rf"search\.shards is 1000, but .* has {len(DOCS)} documents"):
        cut(folder, 1000)
    with pytest.raises(IndexFormatError, match="no complete index"):
        cut(tmp_path, 2)
    with pytest.raises(ConfigError, match="cannot be cut"):
        load_config(["search/lexical=rank_bm25", "search.shards=2"])


def test_cut_full_disk_is_a_typed_error_and_leaves_nothing(folder: Path) -> None:
    with full_disk(1000), pytest.raises(IndexBuildError, match="make room"):
        cut(folder, 2)
    assert [path.name for path in folder.iterdir() if "shards" in path.name] == [f"shards-{NUMBER}"]
    cut(folder, 2)
    assert SearchIndex.open(shard_folder(folder, 1, 2), ("lexical",)).search("lexical", "boiler RB-12", 1)


def test_shard_bytes_are_those_of_the_largest_or_an_equal_share_before_the_cut(folder: Path) -> None:
    parts = ("lexical", "vector")
    whole = open_bytes(*read_manifest(folder), parts)
    sizes = [open_bytes(*read_manifest(Path(shard_folder(folder, shard, NUMBER))), parts) for shard in range(NUMBER)]
    assert shard_bytes(folder, NUMBER, parts) == max(sizes) < whole
    assert shard_bytes(folder, NUMBER, ("lexical",)) < max(sizes)
    assert shard_bytes(folder, 1, parts) == whole
    assert shard_bytes(folder, 3, parts) == whole // 3
