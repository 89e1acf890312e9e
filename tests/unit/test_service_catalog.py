"""Named indexes: answers, deadlines, and a newer snapshot while requests go on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.errors import ConfigError, IndexFormatError, SearchRequestError, ToolTimeoutError, ToolUnavailableError
from rl_cluster.retrieval.documents import DocumentStore
from rl_cluster.service.catalog import IndexCatalog
from rl_cluster.service.values import DocumentAnswer, DocumentRequest, Request, SearchAnswer, SearchRequest
from tests.helpers.small_index import build_index


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("indexes")
    return {f"s{number}": build_index(root / f"s{number}", number) for number in (1, 2)}


def ask(catalog: IndexCatalog, request: Request) -> Any:
    (reply,) = catalog.answer([request])
    return reply


def test_catalog_two_names_answer_from_their_own_index(folders: dict[str, str]) -> None:
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"old": folders["s1"], "new": folders["s2"]})
    default, old, new = catalog.answer(
        [SearchRequest("bm25_search", "pump line 10", 2, index=index) for index in (None, "old", "new")]
    )
    assert isinstance(default, SearchAnswer)
    assert isinstance(new, SearchAnswer)
    assert default == old
    assert default.index_id != new.index_id
    assert default.hits[0].snippet.startswith("Snapshot 1")
    assert new.hits[0].snippet.startswith("Snapshot 2")
    assert [found.name for found in catalog.describe()] == ["old", "new"]
    assert catalog.describe()[0].filter_fields == ["kind", "year"]


def test_catalog_batch_with_wrong_requests_answers_the_right_ones(folders: dict[str, str]) -> None:
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"kb": folders["s1"]})
    good = SearchRequest("bm25_search", "valve", 3, filters={"kind": "wiki"})
    wrong = [
        SearchRequest("bm25_search", "", 3),
        SearchRequest("bm25_search", "x" * 100_000, 3),
        SearchRequest("bm25_search", "valve", 0),
        SearchRequest("bm25_search", "valve", 10_000),
        SearchRequest("bm25_search", "valve", 3, index="nope"),
        SearchRequest("bm25_search", "valve", 3, filters={"nope": 1}),
        SearchRequest("bm25_search", "valve", 3, filters=["kind"]),  # pyright: ignore[reportArgumentType]
        SearchRequest("bm25_search", "half \ud800", 3),
        SearchRequest("vector_search", "valve", 3),
        SearchRequest("grep", "valve", 3),
        DocumentRequest("nope"),
        DocumentRequest("d001", 99),
        DocumentRequest("d001", excluded=("d001",)),
    ]
    replies = catalog.answer([good, *wrong, good])
    assert replies[0] == replies[-1] == ask(catalog, good)
    assert isinstance(replies[0], SearchAnswer)
    assert len(replies[0].hits) == 3
    for request, reply in zip(wrong, replies[1:-1], strict=True):
        assert isinstance(reply, SearchRequestError), request
        assert len(str(reply)) < 400


def test_catalog_request_that_fails_unexpectedly_leaves_the_others(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a damaged file is met."""
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"kb": folders["s1"]})
    monkeypatch.setattr(DocumentStore, "shown", lambda store, position: b"\xff".decode("utf-8"))
    replies = catalog.answer(
        [
            SearchRequest("bm25_search", "valve", 3),
            SearchRequest("bm25_search", "nosuchword", 3),
            DocumentRequest("d001"),
        ]
    )
    assert isinstance(replies[0], ToolUnavailableError)
    assert "UnicodeDecodeError" in str(replies[0])
    assert isinstance(replies[1], SearchAnswer)
    assert isinstance(replies[2], DocumentAnswer)


def test_catalog_nul_in_query_is_answered(folders: dict[str, str]) -> None:
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"kb": folders["s1"]})
    assert ask(catalog, SearchRequest("bm25_search", "val\0ve valve", 1)).hits


def test_catalog_deadline_that_has_passed_is_not_computed(folders: dict[str, str]) -> None:
    now = 1000.0
    catalog = IndexCatalog(("lexical",), clock=lambda: now)
    catalog.apply({"kb": folders["s1"]})
    late, early = catalog.answer([SearchRequest("bm25_search", "pump", 1, deadline=d) for d in (999.5, 1000.5)])
    assert isinstance(late, ToolTimeoutError)
    assert "0.5 s" in str(late)
    assert isinstance(early, SearchAnswer)
    assert isinstance(ask(catalog, DocumentRequest("d001", deadline=1.0)), ToolTimeoutError)


def test_catalog_excluded_never_appears_whatever_k(folders: dict[str, str]) -> None:
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"kb": folders["s1"]})
    for k in (1, 5, 100):
        reply = ask(catalog, SearchRequest("bm25_search", "pump", k, excluded=("d000", "d005")))
        assert not {"d000", "d005"} & {hit.doc_id for hit in reply.hits}


def test_catalog_hostile_document_is_cleaned_and_cut(folders: dict[str, str]) -> None:
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"kb": folders["s1"]})
    hit = ask(catalog, SearchRequest("bm25_search", "evil", 1)).hits[0]
    part = ask(catalog, DocumentRequest("hostile"))
    assert isinstance(part, DocumentAnswer)
    for text in (hit.title, hit.snippet, part.title, part.text.replace("\n", "")):
        assert not any(ord(char) < 32 or char in "\x7f\u202e\u200b" for char in text)
    assert len(hit.title) <= 300
    assert "second line" in part.text.splitlines()[1]
    assert part.parts == 3


def test_catalog_pending_is_opened_and_not_answered_from(folders: dict[str, str]) -> None:
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"kb": folders["s1"]})
    before = ask(catalog, SearchRequest("bm25_search", "pump", 1)).index_id
    catalog.apply({"kb": folders["s1"]}, {"kb": folders["s2"]})
    assert ask(catalog, SearchRequest("bm25_search", "pump", 1)).index_id == before
    catalog.apply({"kb": folders["s2"]})
    assert ask(catalog, SearchRequest("bm25_search", "pump", 1)).index_id != before


def test_catalog_folder_that_cannot_be_opened_changes_nothing(folders: dict[str, str], tmp_path: Path) -> None:
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"kb": folders["s1"]})
    with pytest.raises(IndexFormatError, match="no complete index"):
        catalog.apply({"kb": str(tmp_path)})
    assert isinstance(ask(catalog, SearchRequest("bm25_search", "pump", 1)), SearchAnswer)


def test_catalog_index_without_a_part_that_its_tool_reads_is_refused(folders: dict[str, str]) -> None:
    with pytest.raises(IndexFormatError, match="built without its part 'vector'"):
        IndexCatalog(("lexical", "vector")).apply({"kb": folders["s1"]})


def test_catalog_over_the_memory_given_is_refused_before_opening(folders: dict[str, str]) -> None:
    catalog = IndexCatalog(("lexical",), memory_gib=1e-7)
    with pytest.raises(ConfigError, match=r"search\.memory_gib=1e-07; build it with search/vector=ivf_pq"):
        catalog.apply({"kb": folders["s1"]})


def test_catalog_swapped_while_asked_answers_every_request_from_one_index(folders: dict[str, str]) -> None:
    catalog = IndexCatalog(("lexical",))
    catalog.apply({"kb": folders["s1"]})
    seen: list[tuple[str, str]] = []
    failures: list[object] = []
    ended = threading.Event()

    def asker() -> None:
        while not ended.is_set():
            reply = ask(catalog, SearchRequest("bm25_search", "pump line", 3))
            if isinstance(reply, SearchAnswer):
                seen.extend((reply.index_id, hit.snippet[:10]) for hit in reply.hits)
            else:
                failures.append(reply)

    threads = [threading.Thread(target=asker) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        catalog.apply({"kb": folders["s1"]}, {"kb": folders[f"s{1 + turn % 2}"]})
        catalog.apply({"kb": folders[f"s{1 + turn % 2}"]})
    ended.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(seen)) <= 2
    assert {snippet for _, snippet in seen} <= {"Snapshot 1", "Snapshot 2"}
