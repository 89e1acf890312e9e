"""Layouts for data of one's own: BEIR, TREC, JSONL, the Search-R1 layout, NQ-open, XQuAD."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.preparation.source import open_source
from rl_cluster.datasets.preparation.trec_files import read_topics
from tests.helpers.prepared import prepare_fixture, run_prepare, write_jsonl, write_own


def _beir(folder: Path) -> Path:
    write_jsonl(
        folder / "corpus.jsonl",
        {"_id": "d1", "title": "T", "text": "one", "metadata": {"url": "u"}},
        {"_id": "d2", "text": "two"},
    )
    write_jsonl(folder / "queries.jsonl", *({"_id": f"q{i}", "text": f"question {i}"} for i in range(1, 5)))
    (folder / "qrels").mkdir()
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq1\td1\t1\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq2\td2\t1\nq3\td1\t0\nq9\td1\t1\n")
    return folder


def test_beir_folder_gives_splits_gains_and_listed_drops(tmp_path: Path) -> None:
    out = run_prepare("beir", _beir(tmp_path / "in"), tmp_path / "out", "dataset.label=mine", "validation_fraction=0.0")
    assert {query_id: task["split"] for query_id, task in out.tasks.items()} == {"q1": "train", "q2": "test"}
    assert out.gains()["q1"] == {"d1": 2.0}
    assert out.tasks["q1"]["metadata"]["judged_zero"] == ["d2"]
    assert {reason: part["ids"] for reason, part in out.manifest["dropped"].items()} == {
        "no judgement above 0": ["q3"],
        "judged, but no question": ["q9"],
        "no judgement": ["q4"],
    }
    assert out.manifest["merged"] == {"pairs labelled twice": 1}
    assert out.documents["mine", "d1"]["metadata"] == {"url": "u"}


def test_beir_published_validation_split_needs_no_held_out_part(tmp_path: Path) -> None:
    folder = _beir(tmp_path / "in")
    (folder / "qrels" / "dev.tsv").write_text("q4\td1\t1\n")
    out = run_prepare("beir", folder, tmp_path / "out", "validation_fraction=0.5")
    assert {query_id: task["split"] for query_id, task in out.tasks.items()} == {
        "q1": "train",
        "q2": "test",
        "q4": "validation",
    }


@pytest.mark.parametrize("corpus", ["jsonl", "parquet"])
def test_trec_files_with_either_corpus_give_the_same_tasks(tmp_path: Path, corpus: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "topics.tsv").write_text("1#0\twhere is it?\n2\tand that?\n", encoding="utf-8")
    (folder / "qrels.txt").write_text("1#0 Q0 71570#11 1\n1#0 Q0 5 -2\n2 Q0 5 3\n7 Q0 5 1\n")
    if corpus == "jsonl":
        rows = [{"put": "id:x", "fields": {"doc_id": doc, "title": "T", "text": doc}} for doc in ("71570#11", "5")]
        write_jsonl(folder / "corpus.jsonl", *rows)
    else:
        pq.write_table(pa.table({"docid": ["71570#11", "5"], "contents": ["a", "b"]}), folder / "corpus.parquet")
    out = run_prepare("trec", folder, tmp_path / "out", "dataset.locale=yo")
    assert out.gains() == {"1#0": {"71570#11": 1.0}, "2": {"5": 3.0}}
    assert out.tasks["1#0"]["metadata"]["judged_zero"] == ["5"]
    assert out.tasks["1#0"]["locale"] == "yo"
    assert out.manifest["dropped"]["judged, but no topic"]["ids"] == ["7"]
    assert len(out.documents) == 2


def test_trec_topics_in_blocks_and_in_jsonl_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.topics").write_text("<top>\n<num> Number: 301\n<title> International\n Crime\n<desc> x\n</top>\n")
    write_jsonl(tmp_path / "b.jsonl", {"query_id": 7, "query": "seven"})
    source = open_source(tmp_path)
    first, second = source.files
    assert list(read_topics(source, first)) == [("301", "International Crime")]
    assert list(read_topics(source, second)) == [("7", "seven")]


def test_own_jsonl_gains_as_list_and_object_and_answers_alone(tmp_path: Path) -> None:
    tasks = [
        {"query_id": 1, "prompt": " a? ", "gains": ["d1", "d1"], "split": "test"},
        {"query_id": "b", "prompt": "b?", "gains": {"d1": 2, "d2": 0}, "excluded": ["d2"], "metadata": {"x": 1}},
        {"query_id": "c", "prompt": "c?", "gains": [], "answers": ["yes"]},
        {"query_id": "d", "prompt": "d?", "gains": []},
    ]
    documents = [{"doc_id": "d1", "text": "x", "metadata": {"k": "ü"}}, {"doc_id": "d2", "text": ""}]
    out = run_prepare("jsonl", write_own(tmp_path / "in", tasks, documents), tmp_path / "out")
    assert out.gains() == {"1": {"d1": 1.0}, "b": {"d1": 2.0}, "c": {}}
    assert out.tasks["1"]["prompt"] == "a?"
    assert out.tasks["1"]["split"] == "test"
    assert out.tasks["b"]["metadata"]["x"] == 1
    assert out.tasks["c"]["answers"] == ["yes"]
    assert list(out.manifest["dropped"].values()) == [{"count": 1, "ids": ["d"]}]
    assert out.documents["own", "d1"]["metadata"] == {"k": "ü"}


def test_search_r1_rows_give_bare_questions_and_answers(tmp_path: Path) -> None:
    out = prepare_fixture("search_r1", tmp_path, "validation_fraction=0.0")
    task = out.tasks["nq/train_0"]
    assert (task["prompt"], task["answers"], task["split"]) == (
        "who climbed mount orbel first?",
        ["Mira Vale", "M. Vale"],
        "train",
    )
    document = out.documents["search_r1", "0"]
    assert (document["title"], document["text"]) == (
        "Mount Orbel",
        "Mount Orbel was first climbed by Mira Vale in 1871.",
    )


def test_nq_open_without_documents_is_written_and_said(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "NQ-open.dev.jsonl", {"question": "when?", "answer": ["now", "now", "today"]})
    out = run_prepare("nq_open", tmp_path / "in", tmp_path / "out")
    assert out.tasks["dev/0"]["answers"] == ["now", "today"]
    assert not out.documents
    assert "no documents" in out.manifest["notes"][0]


def test_xquad_paragraphs_are_numbered_alike_in_all_languages(tmp_path: Path) -> None:
    for language, word in (("en", "lake"), ("de", "See")):
        question = {"id": "q1", "question": f"{word}?", "answers": [{"text": word, "answer_start": 2}]}
        data = [{"title": "t", "paragraphs": [{"context": f"a {word}", "qas": [question]}]}]
        (tmp_path / f"xquad.{language}.json").write_text(json.dumps({"data": data, "version": "1.1"}))
    out = run_prepare("xquad", tmp_path, tmp_path / "out" / "own")
    assert out.gains() == {"q1.en": {"0-0": 1.0}, "q1.de": {"0-0": 1.0}}
    assert set(out.documents) == {("xquad/en", "0-0"), ("xquad/de", "0-0")}
    out = run_prepare("xquad", tmp_path, tmp_path / "out" / "cross", "dataset.languages=[de]", "dataset.context=en")
    assert (out.tasks["q1.de"]["corpus"], set(out.documents)) == ("xquad/en", {("xquad/en", "0-0")})
