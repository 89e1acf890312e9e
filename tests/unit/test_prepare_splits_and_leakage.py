"""The split of a task depends on its name alone; what two sets or splits share is found and reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_cluster.datasets.preparation.leakage import normalise
from rl_cluster.datasets.preparation.splits import held_out_split
from rl_cluster.errors import DataError
from tests.helpers.prepared import FIXTURES, prepare_fixture, run_prepare, write_own


def _tasks(count: int) -> list[dict]:
    return [{"query_id": f"q{i}", "prompt": f"question {i}?", "gains": [f"d{i}"]} for i in range(count)]


def _documents(count: int) -> list[dict]:
    return [{"doc_id": f"d{i}", "text": f"This is what document number {i} says."} for i in range(count)]


@pytest.mark.slow
def test_validation_share_of_many_tasks_is_five_percent(tmp_path: Path) -> None:
    out = run_prepare("jsonl", write_own(tmp_path / "in", _tasks(4000), _documents(4000)), tmp_path / "out")
    counts = out.manifest["counts"]["tasks"]
    assert counts["test"] == 0
    assert 150 < counts["validation"] < 250  # 200 expected, standard deviation 14
    assert counts["train"] + counts["validation"] == 4000


def test_split_of_a_task_stays_when_others_come_and_go(tmp_path: Path) -> None:
    tasks = _tasks(300)
    before = run_prepare("jsonl", write_own(tmp_path / "a", tasks, _documents(300)), tmp_path / "before")
    after = run_prepare("jsonl", write_own(tmp_path / "b", tasks[::-1][:200], _documents(300)), tmp_path / "after")
    for query_id, task in after.tasks.items():
        assert task["split"] == before.tasks[query_id]["split"]


@given(st.text(min_size=1), st.floats(0, 0.5), st.floats(0, 0.5))
def test_split_of_any_name_never_moves_back_when_the_share_grows(name: str, share: float, more: float) -> None:
    if held_out_split(name, share, 0.0) == "validation":
        assert held_out_split(name, min(0.5, share + more), 0.0) == "validation"
    assert held_out_split(name, 0.0, 0.0) == "train"


def test_test_fraction_gives_a_training_set_all_three_splits(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", _tasks(400), _documents(400))
    out = run_prepare("jsonl", folder, tmp_path / "out", "test_fraction=0.1")
    assert all(out.manifest["counts"]["tasks"].values())


def test_translations_of_a_question_stay_in_one_split(tmp_path: Path) -> None:
    out = prepare_fixture("mlqa", tmp_path, "validation_fraction=0.5")
    by_question: dict[str, set[str]] = {}
    for query_id, task in out.tasks.items():
        by_question.setdefault(query_id.split(".")[0], set()).add(task["split"])
    assert all(len(splits) == 1 for splits in by_question.values())


def test_held_out_set_is_never_split(tmp_path: Path) -> None:
    for name in ("wands", "wixqa", "freshstack", "browsecomp_plus"):
        out = prepare_fixture(name, tmp_path, "validation_fraction=0.5")
        assert {task["split"] for task in out.tasks.values()} == {"test"}


def test_leakage_between_splits_of_one_set_is_reported(tmp_path: Path) -> None:
    tasks = [
        {"query_id": "a", "prompt": "Where IS it?", "gains": ["d1"], "split": "train"},
        {"query_id": "b", "prompt": "where is it", "gains": ["d2"], "split": "test"},
        {"query_id": "c", "prompt": "and this?", "gains": ["d3"], "split": "test"},
        {"query_id": "d", "prompt": "something else?", "gains": ["d4"], "split": "validation"},
    ]
    texts = ["Same  passage.", "other", "same passage.", "third"]
    documents = [{"doc_id": f"d{i}", "text": text} for i, text in enumerate(texts, start=1)]
    out = run_prepare("jsonl", write_own(tmp_path / "in", tasks, documents), tmp_path / "out")
    assert out.manifest["leakage"] == [
        {
            "between": ["own/test", "own/train"],
            "same_question": 1,
            "same_passage": 1,
            "question_examples": [["own/b", "own/a"]],
            "passage_examples": [["own/c", "own/a"]],
        }
    ]


def test_leakage_between_sets_is_reported_for_folders_named(tmp_path: Path) -> None:
    test = [{"query_id": "t", "prompt": "Question 3!", "gains": ["x"], "split": "test"}]
    other = write_own(tmp_path / "other", test, [{"doc_id": "x", "text": "this is what document number 7 says."}])
    run_prepare("jsonl", other, tmp_path / "held", "dataset.label=held")
    source = write_own(tmp_path / "in", _tasks(10), _documents(10))
    overrides = (f"compare_with=['{tmp_path}/held']", "validation_fraction=0.0")
    out = run_prepare("jsonl", source, tmp_path / "out", *overrides)
    (found,) = out.manifest["leakage"]
    assert found["between"] == ["own/train", "held/test"]
    assert found["question_examples"] == [["own/q3", "held/t"]]
    assert found["passage_examples"] == [["own/q7", "held/t"]]


def test_leakage_between_sets_of_one_label_is_reported_by_their_folders(tmp_path: Path) -> None:
    """Own sets keep the label `own` unless they are told otherwise, and a split of that name is in each."""
    for place, prompt in (("a/held", "Question 3!"), ("b/held", "question 5"), ("other", "something else")):
        test = [{"query_id": "t", "prompt": prompt, "gains": ["x"]}]
        source = write_own(tmp_path / "in" / place, test, [{"doc_id": "x", "text": f"about {place}"}])
        run_prepare("jsonl", source, tmp_path / place, "validation_fraction=0.0")
    source = write_own(tmp_path / "in" / "main", _tasks(10), _documents(10))
    others = ",".join(f"'{tmp_path}/{place}'" for place in ("a/held", "b/held", "other"))
    out = run_prepare("jsonl", source, tmp_path / "out", f"compare_with=[{others}]", "validation_fraction=0.0")
    assert [(found["between"], found["question_examples"]) for found in out.manifest["leakage"]] == [
        (["own/train", f"{tmp_path}/b/held:own/train"], [["own/q5", "own/t"]]),
        (["own/train", "held:own/train"], [["own/q3", "own/t"]]),
    ]


def test_passage_that_no_question_asks_for_is_no_leakage(tmp_path: Path) -> None:
    tasks = [{**task, "split": split} for task, split in zip(_tasks(2), ("train", "test"), strict=True)]
    documents = [*_documents(2), {"doc_id": "d9", "text": _documents(1)[0]["text"]}]
    assert (
        run_prepare("jsonl", write_own(tmp_path / "in", tasks, documents), tmp_path / "out").manifest["leakage"] == []
    )


def test_compare_with_a_folder_that_is_not_prepared_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "wands", tmp_path / "wands")
    with pytest.raises(DataError, match="give a prepared folder"):
        run_prepare("wands", tmp_path / "wands", tmp_path / "out", f"compare_with=['{tmp_path}/wands']")


def test_normalise_keeps_what_tells_hindi_words_apart() -> None:
    assert normalise("  What's  UP? ") == "what s up"
    assert normalise("कि") != normalise("की")
