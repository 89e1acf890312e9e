"""Texts of a confidential data set: played, and then found nowhere in what an evaluation writes."""

from __future__ import annotations

import json
import shutil
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.datasets.corpus import read_corpus
from rl_cluster.datasets.manifest import is_confidential
from rl_cluster.datasets.tables import read_tasks
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import DataError, Outcome
from rl_cluster.evaluate import EVALUATE, run
from rl_cluster.evaluation.confidential import WITHHELD, withhold_texts
from rl_cluster.evaluation.records import record_of
from tests.helpers.chat_server import Answer, chat_server, completion
from tests.helpers.prepared import prepare_fixture

SECRET = ("lighthouse", "invented", "thirty-two", "gazette", "Lumi")
"""Words of questions and documents that neither ids nor settings nor the report itself have."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepare_fixture("browsecomp_plus", tmp_path_factory.mktemp("prepared")).folder
    texts = [task.prompt for task in read_tasks(folder / "tasks.parquet", "test")]
    texts += [document.text for document in read_corpus(folder / "corpus.parquet")]
    assert all(any(word in text for text in texts) for word in SECRET)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))


def telltale(body: dict[str, Any]) -> Answer:
    """Repeats the question and what was found wherever a model can put words: queries, tools, arguments, text and answer."""
    if len(body["messages"]) == 1:  # the endpoint is tried before anything is asked
        return completion("answer: ready")
    question = body["messages"][1]["content"]
    said = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if not said:
        return completion(f"I look for {question}", calls=[("bm25_search", {"query": question})])
    if len(said) == 1:
        return completion(
            said[0], calls=[(question, {question: said[0]}), ("bm25_search", {"query": question, "k": 99})]
        )
    return completion(f"{said[0]}\nanswer: {question}")


def leaks(folder: Path) -> dict[str, list[str]]:
    """The secret words that files below `folder` hold, by file."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            held = sorted(word for word in SECRET if word.encode() in data)
            if held:
                found[str(path.relative_to(folder))] = held
    return found


def evaluate(folder: Path, root: Path, *overrides: str) -> Path:
    """Plays two systems, one of which tells all that it sees; returns the folder in which everything was written."""
    out = root / "written"
    with chat_server(telltale) as server:
        settings = EVALUATE.load(
            [
                f"output_dir={out / 'run'}",
                f"folders=[{folder}]",
                "evaluation.bootstrap_resamples=1000",
                "environment.tools=[bm25_search]",
                "system=[bm25,endpoint]",
                f"systems.endpoint.url={server.url}",
                "systems.endpoint.model=big",
                "systems.endpoint.send_confidential=true",
                "evaluation/drift=[documents_replaced,distractors]",
                *overrides,
            ]
        )
        assert run(settings) == 0
    return out


def not_confidential(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    manifest = json.loads((target / "manifest.json").read_text())
    del manifest["confidential"]
    (target / "manifest.json").write_text(json.dumps(manifest))
    return target


@pytest.mark.slow
def test_report_and_records_of_a_confidential_set_hold_no_text(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = evaluate(prepared, tmp_path, "tracking=none")
    assert leaks(out) == {}
    said = capsys.readouterr().out
    assert "browsecomp_plus: confidential, so no question" in said
    assert not any(word in said for word in SECRET)
    report = json.loads((out / "run" / "report.json").read_text())
    assert report["facts"]["confidential"] == "browsecomp_plus; texts are withheld"
    assert report["systems"]["bm25"]["overall"]["n"] == 2
    page = (out / "run" / "report.html").read_text()
    assert all(task.task_id in page for task in read_tasks(prepared / "tasks.parquet", "test"))
    open_text = evaluate(not_confidential(prepared, tmp_path / "browsecomp_plus"), tmp_path / "open", "tracking=none")
    assert "run/report.html" in leaks(open_text)


def test_endpoint_is_sent_nothing_of_a_confidential_set_unless_a_setting_says_so(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server(telltale) as server:
        endpoint = ["system=[bm25,endpoint]", f"systems.endpoint.url={server.url}", "systems.endpoint.model=big"]
        shared = [f"output_dir={tmp_path / 'out'}", f"folders=[{prepared}]", "environment.tools=[bm25_search]"]
        assert run(EVALUATE.load([*shared, *endpoint, "tracking=none"])) == 2
        assert server.bodies == []
    said = " ".join(capsys.readouterr().out.split())
    assert "systems.endpoint would send questions and documents of browsecomp_plus, which is confid" in said
    assert "set systems.endpoint.send_confidential=true" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_mlflow_of_a_confidential_set_holds_no_text(prepared: Path, tmp_path: Path) -> None:
    tracking = ["tracking.traces_per_step=10"]
    out = evaluate(prepared, tmp_path, *tracking)
    assert (out / "mlflow.db").is_file()
    assert leaks(out) == {}
    open_text = evaluate(not_confidential(prepared, tmp_path / "browsecomp_plus"), tmp_path / "open", *tracking)
    found = leaks(open_text)
    assert any(path.startswith("mlflow_artifacts") for path in found)
    assert any(path.startswith("mlflow.db") for path in found)  # the traces


def test_withheld_episode_keeps_ids_and_numbers() -> None:
    task = Task("t1", "Who built the lighthouse?", "kb", {"g1": 1.0, "g2": 0.5})
    calls = [
        ToolCall("bm25_search", {"query": "lighthouse"}, found_ids=("g1", "n")),
        ToolCall("lighthouse", {}, "none"),
    ]
    turn = Turn([5, 6], [7], [-0.1], [3], "stop", "lighthouse", calls, ["g1 | lighthouse"])
    played = Trajectory("x", "t1", "g", [turn], Outcome.FINISHED, ranking=["n", "lighthouse", "g2"], error="lighthouse")
    withheld = withhold_texts(played, task)
    assert "lighthouse" not in repr(withheld)
    assert withheld.ranking == ["n", WITHHELD, "g2"]
    assert [call.name for call in withheld.turns[0].tool_calls] == ["bm25_search", ""]
    assert withheld.turns[0].prompt_ids == array("i", [0, 0])
    assert record_of(withheld, task) == replace(record_of(played, task), ranking=tuple(withheld.ranking))


def test_is_confidential_of_a_manifest_that_cannot_be_read_is_refused(prepared: Path, tmp_path: Path) -> None:
    assert is_confidential(prepared)
    assert not is_confidential(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match="prepare the folder again"):
            is_confidential(tmp_path)
