"""What a run builds and deploys for its search: what the offered tools read, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import index_builder, run_parts
from actors.search_client import open_search
from rl_cluster.retrieval.index import SearchIndex
from rl_cluster.service.values import open_parts
from tests.helpers.configuration import load_config
from tests.helpers.small_world import write_pumps


def test_build_index_without_vectors_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))
    corpus = write_pumps(tmp_path / "data") / "corpus.parquet"
    build: Any = index_builder.build_index
    # No model of that name can be loaded.
    search = load_config(["search.embedder='bundled:none'"]).search.model_dump()
    built = build._function(str(corpus), "pumps", search, ["en"], open_parts(["bm25_search"]))
    assert built.num_documents == 12
    assert SearchIndex.open(built.folder).tools == ["lexical"]
    assert not (Path(built.folder) / "vector").exists()


@pytest.mark.parametrize(
    ("tools", "parts", "documents_from"),
    [
        (("bm25_search", "read_document"), ("lexical",), "bm25_search"),
        (("read_document", "vector_search"), ("vector",), "vector_search"),
        (("vector_search", "bm25_search"), ("lexical", "vector"), "vector_search"),
        (("hybrid_search",), ("lexical", "vector"), "hybrid_search"),
    ],
)
def test_serve_corpora_offered_tools_decide_what_is_built_and_deployed(
    monkeypatch: pytest.MonkeyPatch, tools: tuple[str, ...], parts: tuple[str, ...], documents_from: str
) -> None:
    config = load_config([f"environment.tools=[{','.join(tools)}]"])
    built: list[Any] = []
    deployed: list[Any] = []

    async def build(path: str, corpus: str, search: Any, locales: list[str], wanted: tuple[str, ...]) -> Any:
        built.append(wanted)
        return index_builder.BuiltIndex(f"/{corpus}", "id", 12, "it finds little.")

    remote = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=build))
    monkeypatch.setattr(run_parts, "build_index", remote)
    monkeypatch.setattr(run_parts, "start_search", lambda folders, app, settings: deployed.append(settings))
    _, summary = asyncio.run(run_parts._serve_corpora(config, Path("/data"), {"kb": {"en"}}))
    assert summary.endswith("\nwarning: it finds little.")
    assert built == [parts]
    assert deployed[0].tools.tools == tools
    client: Any = open_search(run_parts.search_access(config))
    assert client.documents_from == documents_from
