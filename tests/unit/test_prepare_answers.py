"""Questions with answers alone: judged by the documents that hold an answer, over documents of a folder prepared before."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_cluster.datasets.preparation.answer_matching import AnswerMatcher
from rl_cluster.datasets.preparation.converter import Draft
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.tables import read_tasks
from rl_cluster.datasets.task import Document
from rl_cluster.errors import ConfigError, DataError
from tests.helpers.prepared import prepare_fixture, run_prepare, write_jsonl, write_own


def _relevant(answers: list[str], texts: list[str], limit: int = 3, excluded: tuple[str, ...] = ()) -> list[int] | str:
    """Numbers of the documents that count as relevant, or why the question is dropped."""
    draft = Draft("q", "who?", "kb", {}, "test", excluded=excluded, answers=tuple(answers), answer_only=True)
    matcher, report = AnswerMatcher([draft], limit), Report()
    for number, text in enumerate(texts):
        matcher.see("kb", str(number), Document(str(number), "", text))
    if matcher.judged([draft], report):
        assert set(draft.gains.values()) == {1.0}
        return [int(doc_id) for doc_id in draft.gains]
    (reason,) = report.dropped
    return reason


@pytest.mark.parametrize(
    ("answers", "text", "holds"),
    [
        (["Mira Vale"], "first climbed by MIRA  vale, in 1871", True),
        (["Mira Vale"], "Mira met Vale", False),
        (["Vale"], "a valeting service", False),
        (["M. Vale"], "m vale", True),
        (["nobody", "1871"], "in 1871.", True),
        (["\u00c9tienne"], "E\u0301tienne Vale", True),
        (["\u6771\u4eac"], "\u65e5\u672c\u306e\u6771\u4eac\u90fd", True),
        (["\u6771\u90fd"], "\u6771\u4eac\u90fd", False),
        (["\u0939\u093f\u0928\u094d\u0926\u0940"], "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902", True),
        (["..."], "... and so on", False),
    ],
)
def test_answer_matcher_words_side_by_side_are_found(answers: list[str], text: str, holds: bool) -> None:
    expected = [1] if holds else "no document holds one of its answers"
    assert _relevant(answers, ["nothing here", text]) == expected


def test_answer_matcher_answer_in_too_many_documents_drops_the_question() -> None:
    assert _relevant(["two"], ["two"] * 3) == [0, 1, 2]
    assert _relevant(["two"], ["two"] * 4) == "its answers stand in over 3 documents"


def test_answer_matcher_excluded_document_is_not_relevant() -> None:
    assert _relevant(["two"], ["two", "two"], excluded=("0",)) == [1]


def test_answer_matcher_title_and_corpus_of_the_question_count() -> None:
    draft = Draft("q", "where?", "kb", {}, "test", answers=("Mount Orbel",), answer_only=True)
    matcher = AnswerMatcher([draft], 5)
    matcher.see("other", "d0", Document("d0", "Mount Orbel", ""))
    matcher.see("kb", "d1", Document("d1", "Mount Orbel", "a peak"))
    matcher.see("kb", "d2", Document("d2", "Mount", "Orbelville"))
    assert matcher.judged([draft], Report()) == [draft]
    assert draft.gains == {"d1": 1.0}


def test_prepare_search_r1_judged_by_answers_can_be_trained_on(tmp_path: Path) -> None:
    out = prepare_fixture("search_r1", tmp_path, "validation_fraction=0.0", "answer_documents=10")
    assert out.gains()["nq/train_0"] == {"0": 1.0}
    assert out.tasks["nq/train_0"]["metadata"]["judged_by"] == "answers"
    assert any("judged by the documents that hold one of their answers" in note for note in out.manifest["notes"])
    assert out.manifest["settings"]["answer_documents"] == 10


def test_prepare_answers_alone_with_documents_says_how_to_judge_them(tmp_path: Path) -> None:
    out = prepare_fixture("search_r1", tmp_path, "validation_fraction=0.0")
    assert any("answer_documents=100" in note for note in out.manifest["notes"])


def test_prepare_nq_open_over_a_prepared_folder_is_judged_by_its_documents(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "kb" / "corpus.jsonl", {"_id": "d1", "text": "Rain fell."}, {"_id": "d2", "text": "It was May 4."}
    )
    write_jsonl(tmp_path / "kb" / "queries.jsonl", {"_id": "q1", "text": "what fell?"})
    (tmp_path / "kb" / "qrels").mkdir()
    (tmp_path / "kb" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    run_prepare("beir", tmp_path / "kb", tmp_path / "prepared", "dataset.label=mine")
    write_jsonl(
        tmp_path / "nq" / "NQ-open.dev.jsonl",
        {"question": "when?", "answer": ["may 4"]},
        {"question": "where?", "answer": ["Paris"]},
    )
    documents = f"documents='{tmp_path / 'prepared'}'"
    out = run_prepare("nq_open", tmp_path / "nq", tmp_path / "out", documents, "answer_documents=5")
    assert out.gains() == {"dev/0": {"d2": 1.0}}
    assert set(out.documents) == {("mine", "d1"), ("mine", "d2")}
    assert out.manifest["dropped"]["no document holds one of its answers"]["ids"] == ["dev/1"]
    assert len(out.manifest["source"]["documents_sha256"]) == 64
    (task,) = read_tasks(tmp_path / "out" / "tasks.parquet", "test")
    assert (task.corpus, task.gains) == ("mine", {"d2": 1.0})


def test_prepare_answers_without_any_document_says_which_setting_gives_them(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "nq" / "NQ-open.dev.jsonl", {"question": "when?", "answer": ["may 4"]})
    out = run_prepare("nq_open", tmp_path / "nq", tmp_path / "out", "answer_documents=5")
    assert list(out.tasks) == ["dev/0"]
    assert any("give documents=FOLDER" in note for note in out.manifest["notes"])


def test_prepare_documents_of_a_confidential_set_are_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "manifest.json").write_text('{"confidential": "Never publish these texts."}')
    write_jsonl(tmp_path / "nq" / "NQ-open.dev.jsonl", {"question": "when?", "answer": ["may 4"]})
    with pytest.raises(ConfigError, match="is confidential: its texts must not be trained on or published"):
        run_prepare("nq_open", tmp_path / "nq", tmp_path / "out", f"documents='{tmp_path / 'kept'}'")


def test_prepare_documents_that_are_no_prepared_folder_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "nq" / "NQ-open.dev.jsonl", {"question": "when?", "answer": ["may 4"]})
    with pytest.raises(DataError, match=r"documents=.*: it has no corpus\.parquet"):
        run_prepare("nq_open", tmp_path / "nq", tmp_path / "out", f"documents='{tmp_path / 'nowhere'}'")
    assert not (tmp_path / "out").exists()


def test_prepare_no_document_holds_an_answer_is_refused(tmp_path: Path) -> None:
    write_own(
        tmp_path / "in",
        [{"query_id": "a", "prompt": "who?", "gains": {}, "answers": ["nobody"], "split": "test"}],
        [{"doc_id": "d1", "title": "", "text": "somebody"}],
    )
    with pytest.raises(DataError, match=r"no question is left \(1 dropped: no document holds one of its answers\)"):
        run_prepare("jsonl", tmp_path / "in", tmp_path / "out", "answer_documents=10")


@pytest.mark.parametrize("setting", ["documents=/kb", "answer_documents=10"])
def test_prepare_tasks_only_with_what_needs_documents_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match="but tasks_only=true leaves them out"):
        run_prepare("nq_open", tmp_path, tmp_path / "out", "tasks_only=true", setting)


def test_prepare_documents_for_a_mixture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="documents=/kb is for one data set, not for a mixture"):
        run_prepare("search_agent_mix", tmp_path, tmp_path / "out", "documents=/kb")
