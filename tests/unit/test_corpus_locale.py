"""Word search analyses a corpus in the language of its documents, whatever language the questions are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from actors.index_builder import build_index
from rl_cluster.datasets.corpus import read_corpus
from rl_cluster.retrieval.index import SearchIndex
from tests.helpers.configuration import load_config
from tests.helpers.prepared import prepare_fixture, run_prepare, write_own


def test_prepared_documents_say_the_language_of_their_text(tmp_path: Path) -> None:
    out = prepare_fixture("mlqa", tmp_path, "dataset.contexts=[de]", "dataset.questions=[en]")
    assert {task["locale"] for task in out.tasks.values()} == {"en"}
    assert read_corpus(out.folder / "corpus.parquet", "mlqa/de").locales == ["de"]
    shops = prepare_fixture("esci", tmp_path)
    found = {(corpus.removeprefix("esci/"), row["locale"]) for (corpus, _), row in shops.documents.items()}
    assert found
    assert all(corpus == locale for corpus, locale in found)


def test_own_documents_say_their_language_only_where_a_row_does(tmp_path: Path) -> None:
    tasks = [{"query_id": "q", "prompt": "Where?", "gains": ["a"]}]
    documents = [{"doc_id": "a", "text": "x", "locale": "yo"}, {"doc_id": "b", "text": "y"}]
    out = run_prepare("jsonl", write_own(tmp_path / "own", tasks, documents), tmp_path / "out")
    assert {doc_id: row["locale"] for (_, doc_id), row in out.documents.items()} == {"a": "yo", "b": ""}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "questions", "analyzer"), [(True, ["en"], "de"), (True, ["en", "de"], "de"), (False, ["en"], "en")]
)
def test_index_is_built_in_the_language_of_the_documents_where_they_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bool, questions: list[str], analyzer: str
) -> None:
    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))
    out = prepare_fixture("mlqa", tmp_path)
    path = out.folder / "corpus.parquet"
    if not said:
        pq.write_table(pq.read_table(path).drop_columns(["locale"]), path)
    build: Any = build_index
    search = load_config([]).search.model_dump()
    built = build._function(str(path), "mlqa/de", search, questions, ("lexical", "vector"))
    index = SearchIndex.open(built.folder, ("lexical",))
    assert built.num_documents == len(index.corpus) > 0
    assert index.settings.lexical.analysis.analyzer == analyzer
