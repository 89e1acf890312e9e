"""What is written: the same bytes each time, whole or not at all, readable by training."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.converters import get_converter
from rl_cluster.datasets.corpus import read_corpus
from rl_cluster.datasets.preparation import corpus_writer
from rl_cluster.datasets.preparation.corpus_writer import MAX_ROW_GROUP_BYTES, CorpusWriter
from rl_cluster.datasets.preparation.hub import locate
from rl_cluster.datasets.preparation.pipeline import FILES, Options, input_key
from rl_cluster.datasets.tables import MISSING, check_tasks, read_tasks
from rl_cluster.errors import ConfigError, DataError
from rl_cluster.prepare import PREPARE, run, summary
from tests.helpers.prepared import FIXTURES, expected, prepare_fixture, run_prepare, write_own

ROOT = Path(__file__).resolve().parents[2]
TASK = {"query_id": "a", "prompt": "a?", "gains": ["d1"]}
DOCUMENT = {"doc_id": "d1", "text": "x"}


@pytest.mark.parametrize("name", ["frames", "bright", "esci", "musique", "freshstack", "browsecomp_plus"])
def test_output_of_the_same_input_is_the_same_bytes(tmp_path: Path, name: str) -> None:
    folders = [prepare_fixture(name, tmp_path / run).folder for run in ("first", "second")]
    for file in ("tasks.parquet", "corpus.parquet", "manifest.json"):
        assert len({(folder / file).read_bytes() for folder in folders}) == 1


def test_output_of_one_corpus_is_what_training_reads(tmp_path: Path) -> None:
    out = prepare_fixture("enterprise_rag_bench", tmp_path, "validation_fraction=0.0")
    corpus = read_corpus(out.folder / "corpus.parquet")
    tasks = read_tasks(out.folder / "tasks.parquet", "train")
    check_tasks(tasks, corpus, corpus.name)
    assert {task.metadata["query_id"] for task in tasks} == set(out.tasks)


def test_missing_gold_is_what_has_a_gain_and_no_document(tmp_path: Path) -> None:
    """FreshStack keeps judged zeros among the gains; a corpus without one of them lacks nothing that is looked for."""
    shutil.copytree(FIXTURES / "freshstack", tmp_path / "in")
    (questions,) = (tmp_path / "in").glob("queries-oct-2024/*/*.parquet")
    table = pq.read_table(questions).to_pylist()
    table[0]["nuggets"][0]["non_relevant_corpus_ids"] = ["judged zero, absent"]
    table[0]["nuggets"][0]["relevant_corpus_ids"].append("gold, absent")
    pq.write_table(pa.Table.from_pylist(table, pq.read_schema(questions)), questions)
    out = run_prepare("freshstack", tmp_path / "in", tmp_path / "out")
    (missing,) = (ids for ids in out.manifest["missing_gold"].values() if "gold, absent" in ids)
    assert "judged zero, absent" not in missing
    (task,) = (task for task in out.tasks.values() if "gold, absent" in task["gains"])
    assert {"judged zero, absent", "gold, absent"} <= set(task["metadata"][MISSING])


def test_check_tasks_missing_gold_is_accepted_only_where_it_is_declared(tmp_path: Path) -> None:
    out = prepare_fixture("wands", tmp_path)
    corpus = read_corpus(out.folder / "corpus.parquet")
    tasks = read_tasks(out.folder / "tasks.parquet", "test")
    check_tasks(tasks, corpus)
    for task in tasks:
        task.metadata.pop("missing_from_corpus", None)
    with pytest.raises(DataError, match="'4242', which the corpus lacks"):
        check_tasks(tasks, corpus)


def test_row_groups_of_long_documents_stay_below_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_writer, "_FLUSH_BYTES", 200_000)
    monkeypatch.setattr(corpus_writer, "_BATCH_CHARACTERS", 20_000)
    documents = [{"doc_id": f"d{i}", "text": f"é{i} " * (i % 900)} for i in range(1, 1500)]
    out = run_prepare("jsonl", write_own(tmp_path / "in", [TASK], documents), tmp_path / "out")
    metadata = pq.ParquetFile(out.folder / "corpus.parquet").metadata
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    assert len(sizes) > 10
    assert max(sizes) < 200_000 * MAX_ROW_GROUP_BYTES / (56 << 20)
    assert metadata.num_rows == 1499


def test_manifest_counts_hashes_licence_and_revision(tmp_path: Path) -> None:
    manifest = prepare_fixture("wands", tmp_path, "revision=3b74dcf4ba").manifest
    assert manifest["licence"] == "MIT"
    assert manifest["source"]["revision"] == "3b74dcf4ba"
    assert [file["name"] for file in manifest["source"]["files"]] == [
        "dataset/label.csv",
        "dataset/product.csv",
        "dataset/query.csv",
    ]
    assert manifest["counts"]["tasks"] == {"train": 0, "validation": 0, "test": 3}
    assert manifest["published"]["questions"] == {"published": 480, "here": 4}
    assert manifest["missing_gold"] == {"wands/1": ["4242"]}
    assert str(tmp_path) not in json.dumps(manifest)


def test_out_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex.*choose another folder"):
        run_prepare("wands", FIXTURES / "wands", tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_out_that_is_prepared_is_replaced_only_when_the_new_one_is_whole(tmp_path: Path) -> None:
    before = prepare_fixture("wands", tmp_path)
    bad = write_own(tmp_path / "in", [TASK], [])
    with pytest.raises(DataError):
        run_prepare("jsonl", bad, before.folder)
    assert json.loads((before.folder / "manifest.json").read_text()) == before.manifest
    after = run_prepare("jsonl", write_own(tmp_path / "in", [TASK], [DOCUMENT]), before.folder)
    assert after.manifest["dataset"] == "own"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_out_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    arguments = ["dataset=wands", f"source='{FIXTURES / 'wands'}'", f"out='{tmp_path / 'file' / 'out'}'"]
    assert run(PREPARE.load(arguments)) == 2
    assert "it cannot be written" in capsys.readouterr().out


def _command(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rl_cluster.prepare", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_command_line_prints_a_summary_and_never_a_question(tmp_path: Path) -> None:
    process = _command("dataset=browsecomp_plus", f"source={FIXTURES / 'browsecomp_plus'}", f"out={tmp_path / 'out'}")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "2 test tasks" in output
    assert all(query["text"][:20] not in output for query in expected("browsecomp_plus")["queries"])


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_run_leaves_no_output_and_goes_on_unless_the_input_changes(
    tmp_path: Path, signal_number: signal.Signals
) -> None:
    folder = write_own(tmp_path / "in", [TASK], [{"doc_id": f"d{i}", "text": f"{i} " * 40} for i in range(150_000)])
    arguments = ("dataset=jsonl", f"source={folder}", f"out={tmp_path / 'out'}")
    process = _command(*arguments)
    # From then on it writes documents, for a second at least.
    deadline = time.monotonic() + 60
    while not (tmp_path / ".out.partial" / "result" / "corpus.parquet").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal_number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == (130 if signal_number == signal.SIGINT else -signal.SIGKILL), output
    said = "interrupted; what is complete is kept, and the same command goes on from there"
    assert (said in output) == (signal_number == signal.SIGINT), output
    assert not (tmp_path / "out").exists()
    write_own(folder, [TASK], [DOCUMENT])
    again = _command(*arguments)
    assert again.wait(timeout=60) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "corpus.parquet",
        "manifest.json",
        "tasks.parquet",
    ]
    assert not (tmp_path / ".out.partial").exists()


def _interrupt_after(monkeypatch: pytest.MonkeyPatch, documents: int) -> None:
    """Ctrl-C at the next document after so many; row groups of some kilobytes."""
    monkeypatch.setattr(corpus_writer, "_FLUSH_BYTES", 50_000)
    monkeypatch.setattr(corpus_writer, "_BATCH_ROWS", 16)
    add, left = CorpusWriter.add, iter(range(documents))

    def counted(self: CorpusWriter, *arguments: Any) -> str:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return add(self, *arguments)

    monkeypatch.setattr(CorpusWriter, "add", counted)


def test_interrupted_conversion_goes_on_after_the_rows_it_kept_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice, over documents that stand twice and ids that are mended, in a stream that is read from its beginning."""
    documents = [{"doc_id": f"d{i}" + "\n" * (i % 7 == 0), "text": f"{i} " * 60} for i in range(1000)]
    stream = [document for document in documents for _ in range(1 + (document["doc_id"][-1] == "3"))]
    folder = write_own(tmp_path / "in", [TASK], stream)
    config = PREPARE.load(["dataset=jsonl", f"source={folder}", f"out={tmp_path / 'out'}"])
    for number in (400, 900):
        with monkeypatch.context() as changed:
            _interrupt_after(changed, number)
            assert run(config) == 130
        assert not (tmp_path / "out").exists()
    kept = list((tmp_path / ".out.partial").rglob("*.arrow"))
    assert len(kept) > 3
    with monkeypatch.context() as changed:
        _interrupt_after(changed, 10_000)
        assert run(config) == 0
        said = capsys.readouterr().out
        fresh = run_prepare("jsonl", folder, tmp_path / "fresh")
    assert re.search(r"goes on after [1-9][\d,]+ documents that the run before kept", said)
    assert not (tmp_path / ".out.partial").exists()
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (fresh.folder / name).read_bytes()
    assert set(fresh.manifest["merged"]) == {
        "document ids without their line breaks, outer blanks or what is too long",
        "documents that stand twice",
    }


def test_interrupted_conversion_of_an_input_that_changed_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [{"doc_id": f"d{i}", "text": f"{i} " * 60} for i in range(900)]
    folder = write_own(tmp_path / "in", [TASK], documents)
    config = PREPARE.load(["dataset=jsonl", f"source={folder}", f"out={tmp_path / 'out'}"])
    with monkeypatch.context() as changed:
        _interrupt_after(changed, 800)
        assert run(config) == 130
    write_own(folder, [TASK], documents[:600])
    assert run(config) == 0
    assert "goes on after" not in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["counts"]["documents"] == {"own": 600}


def test_interrupted_conversion_kept_rows_that_were_cut_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_own(tmp_path / "in", [TASK], [{"doc_id": f"d{i}", "text": f"{i} " * 60} for i in range(900)])
    config = PREPARE.load(["dataset=jsonl", f"source={folder}", f"out={tmp_path / 'out'}"])
    with monkeypatch.context() as changed:
        _interrupt_after(changed, 800)
        assert run(config) == 130
    kept = sorted((tmp_path / ".out.partial").rglob("*.arrow"))
    kept[1].write_bytes(kept[1].read_bytes()[:1000])
    with monkeypatch.context() as changed:
        _interrupt_after(changed, 10_000)
        assert run(config) == 0
        fresh = run_prepare("jsonl", folder, tmp_path / "fresh")
    assert (tmp_path / "out" / "corpus.parquet").read_bytes() == (fresh.folder / "corpus.parquet").read_bytes()


def test_input_key_changes_with_the_documents_of_another_folder(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT])
    lent = run_prepare("jsonl", folder, tmp_path / "lent").folder
    source, options = locate(str(folder), get_converter("jsonl").CARD, None), Options(documents=lent)
    before = input_key(source, {}, options)
    assert before == input_key(source, {}, options)
    (lent / "corpus.parquet").touch()
    assert input_key(source, {}, options) != before


def test_interrupted_conversion_of_confidential_texts_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupt_after(monkeypatch, 1)
    config = PREPARE.load(
        ["dataset=browsecomp_plus", f"source={FIXTURES / 'browsecomp_plus'}", f"out={tmp_path / 'out'}"]
    )
    assert run(config) == 130
    assert not (tmp_path / ".out.partial").exists()


def test_summary_of_a_small_training_set_says_which_split_is_empty_or_says_little(tmp_path: Path) -> None:
    tasks = [{**TASK, "query_id": f"q{number}", "split": "train"} for number in range(12)]
    source = write_own(tmp_path / "in", tasks, [DOCUMENT])
    nothing = run_prepare("jsonl", source, tmp_path / "a", "validation_fraction=0")
    notes = [line for line in summary(nothing.manifest, nothing.folder) if line.startswith("note: ")]
    assert [note.split(";")[0] for note in notes] == [
        f"note: {split} has no task, and a training run needs some in each split" for split in ("validation", "test")
    ]
    half = run_prepare("jsonl", source, tmp_path / "b", "validation_fraction=0.4", "test_fraction=0.4")
    said = "\n".join(summary(half.manifest, half.folder))
    for split, telling in (("validation", "which checkpoint is best"), ("test", "a gain")):
        few = half.manifest["counts"]["tasks"][split]
        assert 1 < few < 10
        assert f"note: {few} {split} questions say little about {telling}; raise {split}_fraction" in said
