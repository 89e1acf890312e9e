"""The command line of `python -m rl_cluster.serve`: what it takes and what it refuses, before anything starts."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from rl_cluster.datasets.corpus import Corpus, write_corpus
from rl_cluster.datasets.task import Document
from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.errors import ConfigError, DataError, IndexFormatError
from rl_cluster.retrieval.index import IndexSettings, SearchIndex
from rl_cluster.retrieval.memory import open_bytes
from rl_cluster.retrieval.shards import cut
from rl_cluster.serve import SERVE, check_filter_fields, check_folders, corpus_to_serve, run
from rl_cluster.service.settings import CallLimits, ServiceSettings
from tests.helpers.small_index import HashEmbedder, build_index, documents
from tests.helpers.small_world import write_pumps

KB = "indexes={kb: /data/kb}"


def test_serve_config_indexes_and_corpora_are_read() -> None:
    config = SERVE.load([KB, "corpora={docs: /data/corpus.parquet}", "search/vector=ivf_pq", "search.max_replicas=4"])
    assert config.indexes == {"kb": "/data/kb"}
    assert config.corpora == {"docs": "/data/corpus.parquet"}
    assert (config.search.host, config.search.max_replicas, config.search.vector.kind) == ("127.0.0.1", 4, "ivf_pq")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "neither indexes nor corpora names anything"),
        (["indexes={a/b: /x}"], "the name 'a/b' stands in URLs"),
        ([KB, "corpora={kb: /x.parquet}"], "the name 'kb' stands in indexes and in corpora"),
        ([KB, "k=20", "max_k=10"], "k=20 is over max_k=10"),
        ([KB, "tools=[read_document]"], "finds nothing to read"),
        ([KB, "tools=[grep]"], "tools.0='grep' is refused"),
        ([KB, "search=http_json", "search.external.url=http://x"], "search.external is for agents"),
        ([KB, "search.host=0.0.0.0"], "name the environment variable of a bearer token"),
        ([KB, "search.prt=1"], "did you mean 'search.port'?"),
    ],
)
def test_serve_config_wrong_command_line_is_one_sentence(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SERVE.load(overrides)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_check_folders_counts_the_parts_that_the_tools_open(tmp_path: Path) -> None:
    corpus = Corpus.from_documents("kb", documents(1, 3000))
    index = SearchIndex.build(corpus, IndexSettings(), tmp_path / "i", embedder=HashEmbedder())
    words, everything = (
        open_bytes(index.manifest, index.settings, parts) / 2**30 for parts in (("lexical",), ("lexical", "vector"))
    )
    assert words < everything

    def settings(*tools: str) -> ServiceSettings:
        between = (words + everything) / 2
        return ServiceSettings(SearchToolSettings(5, 10, tools), CallLimits(), "127.0.0.1", 8399, memory_gib=between)

    check_folders([str(tmp_path / "i")], settings("bm25_search", "read_document"))
    for tools in (("bm25_search", "vector_search"), ("hybrid_search",)):
        with pytest.raises(ConfigError, match=r"search\.memory_gib"):
            check_folders([str(tmp_path / "i")], settings(*tools))
    copies = [str(shutil.copytree(tmp_path / "i", tmp_path / f"copy{i}")) for i in range(8)]
    with pytest.raises(ConfigError, match=r"search\.memory_gib"):
        check_folders([str(tmp_path / "i"), *copies], settings("bm25_search"))
    check_folders([str(tmp_path / "i")] * 9, settings("bm25_search"))


def test_check_folders_index_in_shards_counts_what_one_machine_opens(tmp_path: Path) -> None:
    folder = tmp_path / "i"
    corpus = Corpus.from_documents("kb", documents(1, 3000))
    index = SearchIndex.build(corpus, IndexSettings(), folder, embedder=HashEmbedder())
    whole = open_bytes(index.manifest, index.settings, ("lexical", "vector")) / 2**30

    def check(memory_gib: float, shards: int, *tools: str) -> None:
        limits = CallLimits(shards=shards)
        check_folders(
            [str(folder)], ServiceSettings(SearchToolSettings(5, 10, tools), limits, "::1", 8399, memory_gib=memory_gib)
        )

    searching = ("bm25_search", "vector_search")
    for _ in range(2):  # not cut yet, then cut
        with pytest.raises(
            ConfigError, match=r"/i: with it the whole indexes take .* of a machine's memory, but search\.memory_gib="
        ):
            check(0.5 * whole, 1, *searching)
        check(0.5 * whole, 4, *searching)
        with pytest.raises(ConfigError, match=r"/i: with it one of 4 shards of each index take .*search\.memory_gib="):
            check(0.2 * whole, 4, *searching)
        with pytest.raises(ConfigError, match="the whole indexes for hybrid_search take"):
            check(0.5 * whole, 4, *searching, "hybrid_search")
        check(1.01 * whole, 4, *searching, "hybrid_search")
        cut(folder, 4)


def test_check_folders_index_without_what_a_tool_reads_is_refused(tmp_path: Path) -> None:
    corpus = Corpus.from_documents("kb", documents(1))
    SearchIndex.build(corpus, IndexSettings(parts=("lexical",)), tmp_path / "i")

    def check(*tools: str) -> None:
        offered = ServiceSettings(SearchToolSettings(5, 10, tools), CallLimits(), "127.0.0.1", 8399)
        check_folders([str(tmp_path / "i")], offered)

    check("bm25_search", "read_document")
    with pytest.raises(IndexFormatError, match="built without its part 'vector'; leave out the tools that read it"):
        check("bm25_search", "vector_search")


def test_check_filter_fields_field_that_no_served_document_has_is_refused(tmp_path: Path) -> None:
    index = f"indexes={{kb: {build_index(tmp_path / 'i')}}}"
    corpora = f"corpora={{pumps: {write_pumps(tmp_path / 'data') / 'corpus.parquet'}}}"
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": "x", "metadata": {"page": 1}}')

    def check(*overrides: str) -> None:
        check_filter_fields(SERVE.load(list(overrides)))

    check(index)
    check(index, "filter_fields=[year,kind]")
    check(corpora, "filter_fields=[kind]")
    check(index, f"corpora={{c: {tmp_path / 'c.jsonl'}}}", "filter_fields=[year,page]")
    with pytest.raises(ConfigError) as caught:
        check(index, corpora, "filter_fields=[year,knid]")
    assert str(caught.value) == (
        "filter_fields=['year', 'knid']: no document of kb, pumps has 'knid' in its metadata; leave it out."
    )
    with pytest.raises(ConfigError, match="no document of pumps has 'year'"):
        check(corpora, "filter_fields=[year]")


def test_corpus_to_serve_is_the_only_one_or_the_one_of_that_name(tmp_path: Path) -> None:
    write_corpus(tmp_path / "one.parquet", "pumps", [Document("a", "", "x")])
    assert corpus_to_serve("kb", tmp_path / "one.parquet") is None
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": "x"}')
    assert corpus_to_serve("kb", tmp_path / "c.jsonl") is None
    several = write_pumps(tmp_path / "several", ("north pumps", "south pumps")) / "corpus.parquet"
    assert corpus_to_serve("south-pumps", several) == "south pumps"
    with pytest.raises(ConfigError, match=r"corpora\.kb=.*one to serve: north-pumps, south-pumps\.$"):
        corpus_to_serve("kb", several)
    with pytest.raises(DataError, match="no such file"):
        corpus_to_serve("kb", tmp_path / "none.parquet")


def test_run_corpus_that_is_missing_is_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rl_cluster.serve.raise_on", lambda *numbers: None)
    assert run(SERVE.load(["corpora={kb: /nowhere.parquet}"])) == 2
    assert (
        capsys.readouterr().out == "error: /nowhere.parquet: there is no such file; give the path of a corpus file.\n"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "it is a folder; give the path of a corpus file."),
        ("id,text\n", "row 1 is not JSON"),
        ("[1]\n", "row 1 is a list"),
    ],
)
def test_corpus_to_serve_that_is_no_corpus_is_refused_at_once(tmp_path: Path, content: str | None, says: str) -> None:
    file = tmp_path / "corpus.csv"
    file.mkdir() if content is None else file.write_text(content)
    with pytest.raises(DataError) as caught:
        corpus_to_serve("kb", file)
    assert str(caught.value).startswith(f"{file}: {says}")


def test_serve_port_in_use_is_refused_before_a_corpus_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert run(SERVE.load(["corpora={kb: /nowhere.parquet}", f"search.port={port}"])) == 2
    assert capsys.readouterr().out.startswith(f"error: search.port={port} is in use on 127.0.0.1; ")


def test_serve_ray_that_does_not_start_is_tried_once_more_and_then_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nMore of it.")

    monkeypatch.setattr("ray.init", fails)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "text": "b"}\n')
    assert run(SERVE.load([f"corpora={{kb: {corpus}}}"])) == 2
    said = capsys.readouterr().out
    first, second = said.splitlines()
    why = "Ray did not start on this machine (The current node timed out during startup); "
    assert first == f"{why}trying once more"
    assert second.startswith(f"error: {why}")


def test_serve_reranker_that_is_no_model_is_refused_before_ray_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, empty = tmp_path / "corpus.jsonl", tmp_path / "empty"
    corpus.write_text('{"id": "a", "text": "b"}\n')
    empty.mkdir()
    for reranker, says in (("/nowhere/model", "is neither a folder nor a hub id"), (str(empty), "has no config.json")):
        overrides = [f"corpora={{kb: {corpus}}}", "tools=[hybrid_search]", f"search.fusion.reranker={reranker}"]
        assert run(SERVE.load(overrides)) == 2
        assert capsys.readouterr().out.startswith(f"error: The re-ranker {reranker!r} {says}")
