"""An embedder of a hub is known by its commit: another one makes another index, and an index is asked with its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.errors import ModelError
from rl_cluster.models.embedder import DEFAULT_EMBEDDER, embedder_commit, embedder_digest, resolve_embedder
from rl_cluster.models.hub import hub_commit
from rl_cluster.retrieval.index import IndexSettings, SearchIndex, content_id
from rl_cluster.retrieval.shards import cut, shard_folder
from tests.helpers.small_index import documents

NAME = "acme/mini"
FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cache of a hub that does not answer; the fixture sets the newest commit of `NAME` in it."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def publish(commit: str) -> None:
        hub_commit.cache_clear()
        folder = cache / "models--acme--mini"
        for path, text in ((f"snapshots/{commit}/config.json", "{}"), ("refs/main", commit)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    yield publish
    hub_commit.cache_clear()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Source and commit of what is loaded, in place of which comes the bundled model."""
    import sentence_transformers

    found: list[tuple[str, str | None]] = []
    real = sentence_transformers.SentenceTransformer

    def load(source: str, *, revision: str | None, **settings: Any) -> Any:
        found.append((source, revision))
        return real(resolve_embedder(DEFAULT_EMBEDDER), device="cpu", local_files_only=True)

    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", load)
    return found


def test_embedder_digest_of_a_hub_changes_with_its_commit(hub: Any) -> None:
    digests = []
    for commit in (FIRST, SECOND, FIRST):
        hub(commit)
        assert embedder_commit(NAME) == commit
        digests.append(embedder_digest(NAME))
    assert digests[0] == digests[2] != digests[1]
    assert embedder_commit(DEFAULT_EMBEDDER) is None


def test_embedder_that_neither_hub_nor_cache_has_is_one_sentence(hub: Any) -> None:
    with pytest.raises(ModelError, match="'acme/other' is not cached here, and the hub does not give it") as caught:
        embedder_digest("acme/other")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_index_of_a_hub_embedder_is_opened_with_the_commit_of_its_documents(
    tmp_path: Path, hub: Any, loads: list[tuple[str, str | None]]
) -> None:
    corpus = Corpus.from_documents("kb", documents(1, 4))
    settings = IndexSettings(parts=("vector",), embedder=NAME)
    hub(FIRST)
    before = content_id(corpus, settings)
    SearchIndex.build(corpus, settings, tmp_path / "i")
    cut(tmp_path / "i", 2)
    hub(SECOND)
    assert content_id(corpus, settings) != before
    for folder in (tmp_path / "i", shard_folder(tmp_path / "i", 1, 2)):
        index = SearchIndex.open(folder)
        index.warm_up()
        assert index.index_id == before
        del index
    assert set(loads) == {(NAME, FIRST)}
