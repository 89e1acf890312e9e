"""Published files convert as they are: counts that their publishers state, or that were counted by hand.

The files lie in the folder that RL_CLUSTER_TEST_DATA names, see test_retrieval_quality; without them their tests are skipped.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.prepared import FIXTURES, Prepared, expected, run_prepare
from tests.helpers.real_data import folder

pytestmark = pytest.mark.slow


def counts(out: Prepared) -> tuple[int, int, int]:
    """Tasks of all splits, relevant pairs, dropped questions."""
    found = out.manifest["counts"]
    return sum(found["tasks"].values()), found["pairs"], found["dropped"]


def test_frames_as_published_has_its_questions_and_pages(tmp_path: Path) -> None:
    out = run_prepare("frames", folder("frames"), tmp_path / "out", "tasks_only=true")
    assert counts(out) == (824, 2676, 0)
    assert out.manifest["counts"]["read"]["links that name no page"] == 3
    assert len({doc_id for gains in out.gains().values() for doc_id in gains}) == 2520
    assert out.manifest["counts"]["tasks"]["validation"] == 35


def test_bright_as_published_has_the_examples_of_all_tasks(tmp_path: Path) -> None:
    out = run_prepare("bright", folder("bright"), tmp_path / "out", "tasks_only=true")
    assert counts(out) == (1384, 7618, 0)
    assert len({task["corpus"] for task in out.tasks.values()}) == 12


def test_esci_rows_as_published_keep_their_grades(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(
        folder("esci-sample") / "test-sample.parquet", tmp_path / "in" / "shopping_queries_dataset_examples.parquet"
    )
    out = run_prepare("esci", tmp_path / "in", tmp_path / "out", "tasks_only=true")
    (gains,) = out.gains().values()
    (task,) = out.tasks.values()
    graded = sorted(gains.values(), reverse=True)
    assert len(graded) == 9  # 3 exact, 6 substitutes
    assert graded[2] > graded[3] == graded[8]
    assert len(task["metadata"]["judged_zero"]) == 7


def test_esci_products_as_published_are_all_of_the_judged_ones(tmp_path: Path) -> None:
    files = ("dataset.examples=test-sample.parquet", "dataset.products=sample-products.jsonl")
    out = run_prepare("esci", folder("esci-sample"), tmp_path / "out", *files)
    assert counts(out) == (1, 9, 0)
    assert out.manifest["counts"]["documents"] == {"esci/us": 16}
    assert out.manifest["missing_gold"] == {}
    (task,) = out.tasks.values()
    assert {*task["gains"], *task["metadata"]["judged_zero"]} == {doc_id for _, doc_id in out.documents}
    assert task["metadata"]["source"]
    assert all(document["title"] for document in out.documents.values())


def test_wands_queries_as_published_take_labels_of_a_few_of_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(folder("wands") / "query.csv", tmp_path / "in")
    for name in ("label.csv", "product.csv"):
        shutil.copy(FIXTURES / "wands" / "dataset" / name, tmp_path / "in")
    out = run_prepare("wands", tmp_path / "in", tmp_path / "out")
    assert out.manifest["counts"]["read"]["questions"] == 480
    assert counts(out) == (3, 5, 477)
    assert out.manifest["dropped"]["no judgement"]["count"] == 476
    assert out.gains() == {question["query_id"]: question["gains"] for question in expected("wands")["queries"]}
    assert out.tasks["3"]["prompt"] == "turquoise pillows"
    assert out.tasks["3"]["metadata"]["query_class"] == "Accent Pillows"


def test_nq_open_as_published_has_its_questions(tmp_path: Path) -> None:
    out = run_prepare("nq_open", folder("nq-open"), tmp_path / "out")
    assert counts(out) == (3610, 0, 0)
    assert all(task["answers"] for task in out.tasks.values())


def test_xquad_as_published_is_parallel_in_seven_languages(tmp_path: Path) -> None:
    out = run_prepare("xquad", folder("xquad"), tmp_path / "out")
    assert counts(out) == (7 * 1190, 7 * 1190, 0)
    assert out.manifest["counts"]["documents"] == {
        f"xquad/{language}": 240 for language in ("ar", "de", "en", "es", "hi", "vi", "zh")
    }


def test_miracl_topics_and_judgements_as_published_are_read(tmp_path: Path) -> None:
    out = run_prepare("trec", folder("miracl-yo"), tmp_path / "out", "tasks_only=true")
    assert counts(out)[:2] == (119, 144)
    assert sum(len(task["metadata"].get("judged_zero", ())) for task in out.tasks.values()) == 1188 - 144


def test_miracl_corpus_as_published_has_every_judged_passage(tmp_path: Path) -> None:
    settings = ("dataset.corpus=yo-feed.jsonl", "dataset.label=miracl", "dataset.locale=yo")
    out = run_prepare("trec", folder("miracl-yo"), tmp_path / "out", *settings)
    assert counts(out)[:2] == (119, 144)
    assert out.manifest["counts"]["documents"] == {"miracl": 49_043}
    assert out.manifest["missing_gold"] == {}
    ids = {doc_id for _, doc_id in out.documents}
    assert "71570#11" in ids
    for task in out.tasks.values():
        assert ids.issuperset([*task["gains"], *task["metadata"].get("judged_zero", ())])
    assert {document["locale"] for document in out.documents.values()} == {"yo"}
