"""Thousands of excluded ids are looked up once, and searches with them give what they gave before."""

from __future__ import annotations

import pytest

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.retrieval.exclusion import Exclusions
from rl_cluster.retrieval.index import IndexSettings, Query, SearchIndex
from tests.helpers.small_index import documents

NUMBER = 3000


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    corpus = Corpus.from_documents("kb", documents(1, NUMBER))
    return SearchIndex.build(corpus, IndexSettings(parts=("lexical",)), tmp_path_factory.mktemp("i") / "i")


@pytest.fixture
def asked(index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids that are looked up in the documents."""
    found: list[str] = []
    real = index.corpus.position

    def position(doc_id: str) -> int | None:
        found.append(doc_id)
        return real(doc_id)

    monkeypatch.setattr(index.corpus, "position", position)
    return found


def test_search_again_with_the_same_excluded_ids_looks_none_up(index: SearchIndex, asked: list[str]) -> None:
    excluded = (*(f"d{i:03d}" for i in range(0, NUMBER, 2)), "absent")
    first = index.search("lexical", "pump line", 100, excluded)
    assert len(asked) >= len(excluded)
    asked.clear()
    assert index.search("lexical", "pump line", 100, tuple(excluded)) == first
    index.search_many("lexical", [Query("valve", 5, excluded), Query("boiler", 5, excluded, {"kind": "wiki"})])
    assert asked == []
    assert not {hit.doc_id for hit in first} & set(excluded)
    kept = [hit.doc_id for hit in index.search("lexical", "pump line", 100) if hit.doc_id not in excluded]
    assert [hit.doc_id for hit in first][: len(kept)] == kept


def test_search_with_other_excluded_ids_is_not_answered_from_those_before(index: SearchIndex) -> None:
    for excluded in (("d000",), ("d005",), ("d000", "d005"), ("d00", "0d005"), ()):
        hits = {hit.doc_id for hit in index.search("lexical", "pump", 100, excluded)}
        assert {"d000", "d005"} - hits == set(excluded) & {"d000", "d005"}


def test_exclusions_filter_of_one_search_is_not_left_in_the_next(index: SearchIndex) -> None:
    excluded = ("d000",)
    index.search("lexical", "pump", 3, excluded, {"kind": "mail"})
    kinds = {index.document(hit.doc_id).metadata["kind"] for hit in index.search("lexical", "pump", 50, excluded)}
    assert kinds == {"mail", "wiki"}


def test_exclusions_over_their_room_forget_the_oldest_and_stay_right(index: SearchIndex, asked: list[str]) -> None:
    exclusions = Exclusions(index.corpus, most=3 * (64 + 100))
    lists = [tuple(f"d{i:03d}" for i in range(start, start + 100)) for start in range(0, 1000, 100)]
    for start, excluded in enumerate(lists):
        assert exclusions.positions(excluded).tolist() == [index.corpus.position(doc_id) for doc_id in excluded], start
    assert len(exclusions._kept) == 3
    asked.clear()
    exclusions.positions(lists[-1])
    assert asked == []
    exclusions.positions(lists[0])
    assert asked == list(lists[0])
    whole = tuple(f"d{i:03d}" for i in range(NUMBER))
    assert len(exclusions.positions(whole)) == NUMBER
    assert len(exclusions._kept) == 1
