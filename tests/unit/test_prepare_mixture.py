"""The published mixture in one go: shares of its sets, resumption set by set, one folder."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.preparation import mixture
from rl_cluster.datasets.preparation.settings import check_prepare
from rl_cluster.datasets.tables import read_tasks
from rl_cluster.errors import ConfigError, DataError
from rl_cluster.preflight import check_inputs
from rl_cluster.prepare import PREPARE, run, summary
from tests.helpers.configuration import load_config
from tests.helpers.prepared import FIXTURES, Prepared, expected, run_config, run_prepare, write_own

SETS = ("frames", "bright", "enterprise_rag_bench", "esci", "musique", "mlqa")
ALL_SPLITS = "dataset.splits=[train,validation,test]"


def _own_sets(tmp_path: Path, **sizes: int) -> Path:
    for name, size in sizes.items():
        tasks = [{"query_id": f"q{i}", "prompt": f"{name} {i}?", "gains": [f"d{i}"]} for i in range(size)]
        write_own(tmp_path / "in" / name, tasks, [{"doc_id": f"d{i}", "text": f"{name} {i}"} for i in range(size)])
    return tmp_path / "in"


def _mix(source: Path, out: Path, members: dict[str, dict[str, Any]], test_fraction: float = 0.0) -> Prepared:
    """A mixture of sets in the layout of one's own."""
    sets = {}
    for name, changed in members.items():
        settings = {"name": "jsonl", "label": name, "locale": "en", "split": "train"}
        member = {
            "cap": None,
            "weight": None,
            "source": None,
            "revision": None,
            "tasks_only": False,
            "settings": settings,
        }
        sets[name] = member | changed
    dataset = {"name": "mine", "splits": ["train", "validation"], "test_fraction": test_fraction, "sets": sets}
    shared = {
        "revision": None,
        "validation_fraction": 0.1,
        "test_fraction": 0.0,
        "tasks_only": False,
        "compare_with": [],
        "answer_documents": 0,
        "documents": None,
    }
    return run_config(check_prepare({"dataset": dataset, "source": str(source), "out": str(out), **shared}))


def test_mixture_of_the_published_sets_holds_every_one_as_it_is_alone(tmp_path: Path) -> None:
    out = run_prepare("search_agent_mix", FIXTURES, tmp_path / "out", ALL_SPLITS)
    wanted = {f"{name}/{query['query_id']}": query["gains"] for name in SETS for query in expected(name)["queries"]}
    rows = pq.read_table(out.folder / "tasks.parquet").to_pylist()
    assert {row["task_id"] for row in rows} == set(wanted)
    for name in SETS:
        single = run_prepare(name, FIXTURES / name, tmp_path / name)
        assert {doc_id: row["text"] for doc_id, row in out.documents.items() if doc_id in single.documents} == {
            doc_id: row["text"] for doc_id, row in single.documents.items()
        }
    assert set(out.manifest["sets"]) == set(SETS)
    assert out.manifest["licence"]["mlqa"] == "CC BY-SA 3.0"
    tasks = read_tasks(out.folder / "tasks.parquet", "train")
    assert {task.task_id: task.gains for task in tasks}.items() <= wanted.items()


def test_mixture_leaves_published_test_splits_out_and_holds_a_part_of_training_out_instead(tmp_path: Path) -> None:
    out = run_prepare("search_agent_mix", FIXTURES, tmp_path / "out", "dataset.test_fraction=0.4")
    rows = {row["task_id"]: row["split"] for row in pq.read_table(out.folder / "tasks.parquet").to_pylist()}
    published: set[str] = set()
    for name in SETS:
        alone = run_prepare(name, FIXTURES / name, tmp_path / name, "validation_fraction=0.0")
        left_out = {f"{name}/{query}" for query, task in alone.tasks.items() if task["split"] == "test"}
        reason = out.manifest["sets"][name]["dropped"].get(
            "of the published test split, which is left out", {"ids": []}
        )
        assert {f"{name}/{query_id}" for query_id in reason["ids"]} == left_out
        published |= left_out
    assert published
    assert not published & rows.keys()
    assert {"train", "test"} <= set(rows.values())


def test_mixture_held_out_test_tasks_stay_when_a_set_grows(tmp_path: Path) -> None:
    def held_out(size: int) -> set[str]:
        source = _own_sets(tmp_path / str(size), one=size)
        out = _mix(source, tmp_path / f"out-{size}", {"one": {}}, test_fraction=0.2)
        return {query_id for query_id, task in out.tasks.items() if task["split"] == "test"}

    few, more = held_out(200), held_out(400)
    assert 20 < len(few) < 60
    assert few == {name for name in more if int(name.removeprefix("q")) < 200}


@pytest.mark.slow
def test_mixture_of_the_published_sets_can_be_trained_on(tmp_path: Path) -> None:
    fractions = ("validation_fraction=0.3", "dataset.test_fraction=0.3")
    out = run_prepare("search_agent_mix", FIXTURES, tmp_path / "out", *fractions)
    data = ["data=tables", f"data.folder='{out.folder}'", "warmup=none", "training.global_batch_size=1"]
    check_inputs(load_config(data))
    assert out.manifest["notes"] == []


def test_mixture_without_a_test_task_says_so(tmp_path: Path) -> None:
    out = _mix(_own_sets(tmp_path, one=50), tmp_path / "out", {"one": {}})
    assert out.manifest["notes"] == ["There is no test task, and training needs some of each split."]
    assert out.manifest["notes"][0] in summary(out.manifest, out.folder)


def test_mixture_set_without_documents_is_left_out_and_counted(tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(FIXTURES, source)
    (source / "frames" / "pages.jsonl").unlink()
    out = run_prepare("search_agent_mix", source, tmp_path / "out")
    frames = len(expected("frames")["queries"])
    assert out.manifest["left_out"] == {"frames": {"tasks": frames, "reason": "its corpus has no document"}}
    assert f"frames: {frames} tasks left out: its corpus has no document" in summary(out.manifest, out.folder)
    assert not any(task["task_id"].startswith("frames/") for task in out.tasks.values())
    assert set(out.manifest["sets"]) == set(SETS) - {"frames"}
    alone = run_prepare("search_agent_mix", source, tmp_path / "alone", "tasks_only=true")
    assert any(task["task_id"].startswith("frames/") for task in alone.tasks.values())


def test_mixture_whose_sets_have_no_document_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "frames", tmp_path / "in" / "frames")
    (tmp_path / "in" / "frames" / "pages.jsonl").unlink()
    others = [f"~dataset.sets.{name}" for name in SETS if name != "frames"]
    with pytest.raises(DataError, match="no set of search_agent_mix has a document"):
        run_prepare("search_agent_mix", tmp_path / "in", tmp_path / "out", *others)


def test_mixture_with_a_confidential_set_is_refused(tmp_path: Path) -> None:
    settings = {"name": "browsecomp_plus", "relevant": "evidence", "canary_file": None}
    with pytest.raises(ConfigError, match=r"dataset\.sets\.secret is confidential and must never be trained on"):
        _mix(tmp_path, tmp_path / "out", {"secret": {"settings": settings}})


def test_mixture_cap_cuts_training_and_validation_alike(tmp_path: Path) -> None:
    source = _own_sets(tmp_path, one=400, two=100)
    full = _mix(source, tmp_path / "full", {"one": {}, "two": {}}).manifest["counts"]["tasks"]
    capped = _mix(source, tmp_path / "capped", {"one": {"cap": 90}, "two": {}})
    counts = capped.manifest["counts"]["tasks"]
    assert counts["train"] == {"one": 90, "two": full["train"]["two"]}
    assert counts["validation"]["one"] == pytest.approx(full["validation"]["one"] * 90 / full["train"]["one"], abs=1)


def test_mixture_larger_cap_keeps_what_a_smaller_one_took(tmp_path: Path) -> None:
    source = _own_sets(tmp_path, one=300)
    few = set(_mix(source, tmp_path / "few", {"one": {"cap": 20}}).tasks)
    more = set(_mix(source, tmp_path / "more", {"one": {"cap": 60}}).tasks)
    assert few < more


def test_mixture_weights_give_the_ratio_of_training_tasks(tmp_path: Path) -> None:
    source = _own_sets(tmp_path, one=400, two=100)
    out = _mix(source, tmp_path / "out", {"one": {"weight": 1.0}, "two": {"weight": 0.5}})
    counts = out.manifest["counts"]["tasks"]["train"]
    assert counts["one"] == 2 * counts["two"]
    assert counts["two"] > 80  # the smaller set is kept whole


def test_mixture_weights_for_some_sets_only_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sets\.frames\.weight is not set, but others are"):
        run_prepare("search_agent_mix", FIXTURES, tmp_path / "out", "dataset.sets.esci.weight=1.0")


def test_mixture_weight_of_a_set_without_training_tasks_is_refused(tmp_path: Path) -> None:
    weights = [f"dataset.sets.{name}.weight=1.0" for name in SETS]
    with pytest.raises(DataError, match=r"dataset\.sets\.musique\.weight: the set has no training task"):
        run_prepare("search_agent_mix", FIXTURES, tmp_path / "out", *weights)


def test_mixture_order_interleaves_the_sets(tmp_path: Path) -> None:
    out = _mix(_own_sets(tmp_path, one=100, two=100), tmp_path / "out", {"one": {}, "two": {}})
    rows = pq.read_table(out.folder / "tasks.parquet").to_pylist()
    train = [row["task_id"].split("/")[0] for row in rows if row["split"] == "train"]
    assert [row["split"] for row in rows] == sorted((row["split"] for row in rows), key=("train", "validation").index)
    assert sum(a != b for a, b in itertools.pairwise(train)) > 50


def test_mixture_interrupted_goes_on_with_the_sets_that_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    shutil.copytree(FIXTURES, source)
    asked: list[str] = []
    convert = mixture.convert

    def interrupted(located: Any, settings: Any, *rest: Any) -> dict[str, Any]:
        asked.append(settings.name)
        if settings.name == "esci" and asked.count("esci") == 1:
            raise KeyboardInterrupt
        return convert(located, settings, *rest)

    monkeypatch.setattr(mixture, "convert", interrupted)
    config = PREPARE.load(["dataset=search_agent_mix", f"source={source}", f"out={tmp_path / 'out'}"])
    assert run(config) == 130
    said = "interrupted; what is complete is kept, and the same command goes on from there"
    assert said in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    # A set whose files have changed meanwhile is converted anew.
    (source / "bright" / "new.txt").write_text("x")
    continued = run_prepare("search_agent_mix", source, tmp_path / "out")
    assert asked == ["frames", "bright", "enterprise_rag_bench", "esci", "bright", "esci", "musique", "mlqa"]
    assert not (tmp_path / ".out.partial").exists()
    fresh = run_prepare("search_agent_mix", source, tmp_path / "fresh")
    assert continued.manifest["sha256"] == fresh.manifest["sha256"]


def test_mixture_set_that_is_not_there_says_how_to_leave_it_out(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "frames", tmp_path / "in" / "frames")
    with pytest.raises(DataError, match=r"it has no folder 'bright'.*~dataset\.sets\.bright"):
        run_prepare("search_agent_mix", tmp_path / "in", tmp_path / "out")


def test_mixture_corpora_of_one_name_are_refused(tmp_path: Path) -> None:
    source = _own_sets(tmp_path, one=3, two=3)
    settings = {"name": "jsonl", "label": "same", "locale": "en", "split": "train"}
    with pytest.raises(DataError, match="the sets one and two both have a corpus 'same'"):
        _mix(source, tmp_path / "out", {"one": {"settings": settings}, "two": {"settings": settings}})
