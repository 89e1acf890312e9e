"""An evaluation whose searches are answered by an endpoint of the team's own: here by the same index, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.evaluate import EVALUATE, run
from rl_cluster.retrieval.index import SearchIndex
from tests.helpers.chat_server import Answer, ChatServer, chat_server
from tests.helpers.configuration import load
from tests.helpers.small_world import LEXICAL, pump_questions, write_pumps


@contextmanager
def search_endpoint(
    folder: Path, wrong: Callable[[dict[str, Any]], Answer | None] = lambda body: None
) -> Iterator[ChatServer]:
    """Answers from an index of the pumps, or with what `wrong` makes of a request."""
    questions = pump_questions(folder / "indexed")
    index = SearchIndex.build(questions.read_corpus(), LEXICAL, folder / "index")

    def answer(body: dict[str, Any]) -> Answer:
        failed = wrong(body)
        if failed is not None:
            return failed
        hits = index.search("lexical", body["query"], body["k"], body["excluded"], body["filters"] or None)
        return 200, {"hits": [hit._asdict() for hit in hits]}

    with chat_server(answer) as server:
        yield server


def evaluated(tmp_path: Path, *overrides: str) -> tuple[int, Path]:
    """The exit code and the folder of an evaluation of one search with the question itself."""
    data = write_pumps(tmp_path / "data")
    out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
    fixed = [
        f"folders=[{data}]",
        f"output_dir={out}",
        "tracking=none",
        "system=[bm25]",
        "environment.tools=[bm25_search]",
    ]
    return run(load(EVALUATE, [*fixed, "evaluation.bootstrap_resamples=1000", *overrides])), out


def scores(out: Path) -> Any:
    return json.loads((out / "report.json").read_text())["systems"]["bm25"]["overall"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))


def test_evaluate_own_endpoint_gives_the_numbers_of_the_index_behind_it(tmp_path: Path) -> None:
    code, here = evaluated(tmp_path)
    assert code == 0
    with search_endpoint(tmp_path) as server:
        where = ["search=http_json", f"search.external.url={server.url}"]
        code, there = evaluated(
            tmp_path,
            *where,
            "evaluation/drift=[search_failing,new_filter,other_k]",
            "evaluation.drift.new_filter.field=kind",
            "evaluation.drift.new_filter.values=[page]",
        )
    assert code == 0
    assert len(server.bodies) > 30
    assert scores(there)["ndcg@10"] == scores(here)["ndcg@10"] > 0.8
    assert {body["k"] for body in server.bodies} == {1, 100}
    assert any(body["filters"] == {"kind": ["page"]} for body in server.bodies)


def test_evaluate_own_endpoint_that_fails_is_no_answer_of_the_system(tmp_path: Path) -> None:
    def gone(body: dict[str, Any]) -> Answer | None:
        return None if "north" not in body["query"] else (500, "broken")

    with search_endpoint(tmp_path, gone) as server:
        code, out = evaluated(tmp_path, "search=http_json", f"search.external.url={server.url}")
    assert code == 0
    assert scores(out)["infrastructure_by_reason"] == {"tool_unavailable": 1}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["evaluation/drift=[documents_removed]"], "evaluation.drift.documents_removed needs all documents at hand, but http"),
        (["evaluation/drift=[random_retriever]"], "evaluation.drift.random_retriever needs all documents at hand"),
        (["system=[fusion]"], "search.external.tools has no hybrid_search, which a system asks"),
        (["system=[scripted]", "environment.tools=[bm25_search,read_document]"], "search.external.document_url is not set"),
        (["search.external.token_env=NO_SUCH_TOKEN"], "search.external.token_env=NO_SUCH_TOKEN: that environment variable is not set"),
        ([], "search.external.tools.bm25_search: The search was refused as wrong: unknown field"),
    ],
)  # fmt: skip
def test_evaluate_own_endpoint_wrong_setting_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], says: str
) -> None:
    refuses = lambda body: (422, {"detail": "unknown field"})  # noqa: E731
    with search_endpoint(tmp_path, refuses) as server:
        code, out = evaluated(tmp_path, "search=http_json", f"search.external.url={server.url}", *overrides)
    assert code == 2
    assert f"error: {says}" in capsys.readouterr().out
    assert not (out / "report.json").exists()


def test_evaluate_own_endpoint_that_refuses_a_filter_of_a_drift_is_no_effect_of_the_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The corpus at hand may lack metadata, so that the endpoint itself is asked."""
    drift = [
        "evaluation/drift=[new_filter]",
        "evaluation.drift.new_filter.field=colour",
        "evaluation.drift.new_filter.values=[red]",
    ]
    with search_endpoint(
        tmp_path, lambda body: (422, {"detail": "no field colour"}) if body["filters"] else None
    ) as server:
        code, out = evaluated(tmp_path, "search=http_json", f"search.external.url={server.url}", *drift)
    assert code == 2
    assert (
        "error: search.external.tools.bm25_search: The search was refused as wrong: no field colour"
        in capsys.readouterr().out
    )
    assert not (out / "report.json").exists()


def test_evaluate_own_endpoint_complete_evaluation_is_reported_again_without_it(tmp_path: Path) -> None:
    """How it is asked may change meanwhile."""
    with search_endpoint(tmp_path) as server:
        where = ["search=http_json", f"search.external.url={server.url}"]
        code, out = evaluated(tmp_path, *where)
        asked = len(server.bodies)
        again = [*where, "search.external.max_concurrency=2", f"output_dir={out}"]
        assert (code, evaluated(tmp_path, *again)[0]) == (0, 0)
    assert len(server.bodies) == asked


def test_evaluate_own_endpoint_of_confidential_questions_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_pumps(tmp_path / "data")
    (data / "manifest.json").write_text(json.dumps({"confidential": "Never publish these texts."}))
    with search_endpoint(tmp_path) as server:
        code, _ = evaluated(tmp_path, "search=http_json", f"search.external.url={server.url}")
    assert code == 2
    assert "would be sent questions of" in capsys.readouterr().out
    assert server.bodies == []
