"""Malformed input is one typed error that names file, row, column, value and mend, or a counted drop."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.corpus import read_corpus
from rl_cluster.errors import DataError
from tests.helpers.prepared import FIXTURES, expected, run_prepare, write_jsonl, write_own

TASK = {"query_id": "a", "prompt": "a?", "gains": ["d1"]}
DOCUMENT = {"doc_id": "d1", "text": "x"}


def _copy(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, tmp_path / "in"))


def _refusal(dataset: str, source: Path, *overrides: str) -> str:
    """The message: one line; nothing is left where the output would be."""
    out = source.parent / "refused"
    with pytest.raises(DataError) as error:
        run_prepare(dataset, source, out, *overrides)
    assert not out.exists()
    assert not out.with_name(".refused.partial").exists()
    message = str(error.value)
    assert "\n" not in message
    return message


def _assert_says(message: str, *words: str) -> None:
    assert [word for word in words if word not in message] == [], message


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def _replace_column(path: Path, column: str, values: list[Any]) -> None:
    table = pq.read_table(path)
    index = table.column_names.index(column)
    pq.write_table(table.set_column(index, column, pa.array(values)), path)


def test_label_outside_the_published_set_names_row_and_value(tmp_path: Path) -> None:
    folder = _copy("wands", tmp_path)
    _edit(folder / "dataset" / "label.csv", "2\t0\t2\tIrrelevant", "2\t0\t2\tMaybe")
    _assert_says(_refusal("wands", folder), "dataset/label.csv: row 3: column 'label': 'Maybe'", "use one of 'Exact'")


def test_label_of_esci_outside_the_published_set_is_refused(tmp_path: Path) -> None:
    folder = _copy("esci", tmp_path)
    path = folder / "shopping_queries_dataset_examples.parquet"
    labels = pq.read_table(path).column("esci_label").to_pylist()
    _replace_column(path, "esci_label", [*labels[:4], "X", *labels[5:]])
    _assert_says(_refusal("esci", folder), "row 5: column 'esci_label': 'X'", "'E', 'S', 'C', 'I'")


def test_column_that_is_missing_lists_those_there(tmp_path: Path) -> None:
    folder = _copy("wands", tmp_path)
    _edit(folder / "dataset" / "query.csv", "query_class", "class")
    _assert_says(
        _refusal("wands", folder), "dataset/query.csv: the column 'query_class' is missing", "'class'", "published file"
    )


def test_column_that_is_missing_from_a_parquet_file_is_named(tmp_path: Path) -> None:
    folder = _copy("bright", tmp_path)
    path = folder / "documents" / "biology-00000-of-00001.parquet"
    pq.write_table(pq.read_table(path).rename_columns(["id", "text"]), path)
    _assert_says(_refusal("bright", folder), "documents/biology", "the column 'content' is missing", "'text'")


def test_field_that_a_jsonl_row_lacks_is_named(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK, {"query_id": "b", "prompt": "b?"}], [DOCUMENT])
    _assert_says(_refusal("jsonl", folder), "tasks.jsonl: row 2 lacks the column 'gains'", "'query_id', 'prompt'")


@pytest.mark.parametrize("cell", ["['https://en.wikipedia.org/wiki/A'", "__import__('os')", "{'a': 1}", "[1, 2]"])
def test_list_that_cannot_be_parsed_names_row_and_value(tmp_path: Path, cell: str) -> None:
    folder = _copy("frames", tmp_path)
    _edit(
        folder / "test.tsv",
        "['https://en.wikipedia.org/wiki/Lake_Orbel', 'https://en.wikipedia.org/wiki/Mount_Orbel']",
        cell,
    )
    _assert_says(_refusal("frames", folder), "test.tsv: row 1: column 'wiki_links'", cell[:10], "write a list of links")


def test_id_that_two_questions_share_is_refused(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK, {**TASK, "prompt": "b?"}], [DOCUMENT])
    _assert_says(_refusal("jsonl", folder), "tasks.jsonl: row 2: the question id 'a' stands before; make ids unique.")


def test_id_that_two_documents_share_is_refused(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT, {"doc_id": "d1", "text": "other"}])
    _assert_says(_refusal("jsonl", folder), "corpus.jsonl: row 2: the document id 'd1' stands before with another text")


def test_document_id_that_would_break_a_line_of_results_is_cleaned_wherever_it_stands(tmp_path: Path) -> None:
    ids = {"line": "a\nb | forged", "ends": " d2\u00a0", "long": "x" * 600, "longer": "x" * 601}
    task = {**TASK, "gains": [ids["line"], ids["long"]], "excluded": [ids["ends"], ids["longer"]]}
    documents = [{"doc_id": doc_id, "text": name} for name, doc_id in ids.items()]
    out = run_prepare("jsonl", write_own(tmp_path / "in", [task], documents), tmp_path / "out")
    by_text = {row["text"]: doc_id for (_, doc_id), row in out.documents.items()}
    assert (by_text["line"], by_text["ends"]) == ("a b | forged", "d2")
    assert set(out.tasks["a"]["gains"]) == {by_text["line"], by_text["long"]}
    assert out.tasks["a"]["excluded"] == [by_text["ends"], by_text["longer"]]
    assert len(by_text["long"]) == 512
    assert out.manifest["merged"] == {"document ids without their line breaks, outer blanks or what is too long": 4}
    assert len(read_corpus(out.folder / "corpus.parquet")) == 4


def test_document_id_of_blanks_is_refused(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT, {"doc_id": " \n", "text": "other"}])
    _assert_says(
        _refusal("jsonl", folder), "corpus.jsonl: row 2: the document id ' \\n' is blank; write ids of one line"
    )


def test_document_that_stands_twice_word_by_word_counts_once(tmp_path: Path) -> None:
    out = run_prepare("jsonl", write_own(tmp_path / "in", [TASK], [DOCUMENT, DOCUMENT]), tmp_path / "out")
    assert (len(out.documents), out.manifest["merged"]) == (1, {"documents that stand twice": 1})


def test_query_of_two_locales_is_refused(tmp_path: Path) -> None:
    folder = _copy("esci", tmp_path)
    path = folder / "shopping_queries_dataset_examples.parquet"
    ids = pq.read_table(path).column("query_id").to_pylist()
    _replace_column(path, "query_id", [101] * len(ids))
    _assert_says(_refusal("esci", folder), "row 5: column 'query_id': 101", "two different questions")


def test_corpus_without_a_document_is_refused(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK], [])
    _assert_says(_refusal("jsonl", folder), "has no document there", "tasks_only=true")
    out = run_prepare("jsonl", folder, tmp_path / "out", "tasks_only=true")
    assert (list(out.tasks), len(out.documents), out.manifest["missing_gold"]) == (["a"], 0, {})


def test_corpus_that_questions_ask_without_a_document_is_refused(tmp_path: Path) -> None:
    folder = _copy("bright", tmp_path)
    (folder / "documents" / "leetcode-00000-of-00001.parquet").unlink()
    _assert_says(_refusal("bright", folder), "corpus 'bright/leetcode' has no document, but 1 questions ask it")


def test_file_that_is_missing_names_what_it_is(tmp_path: Path) -> None:
    folder = _copy("wands", tmp_path)
    (folder / "dataset" / "label.csv").unlink()
    _assert_says(_refusal("wands", folder), str(folder), "the labels of WANDS", "label.csv")


def test_file_that_stands_twice_is_refused(tmp_path: Path) -> None:
    folder = _copy("wands", tmp_path)
    shutil.copytree(folder / "dataset", folder / "copy")
    _assert_says(_refusal("wands", folder), "2 files could be the labels of WANDS (copy/label.csv, dataset/label.csv)")


def test_jsonl_that_ends_inside_a_row_says_so(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT, {"doc_id": "d2", "text": "y"}])
    path = folder / "corpus.jsonl"
    path.write_bytes(path.read_bytes()[:-8])
    _assert_says(_refusal("jsonl", folder), "corpus.jsonl: row 2 is no JSON object", "download it again")


@pytest.mark.parametrize(
    ("line", "mend"),
    [
        (b'{"doc_id": "d", "text": "caf\xe9"}\n', "save the file as UTF-8"),
        (b'{"doc_id": "d", "text": "x", "gains": {"a": NaN}}\n', "JSON has no NaN and no infinity"),
    ],
)
def test_jsonl_row_of_another_encoding_or_with_nan_says_how_to_mend_it(tmp_path: Path, line: bytes, mend: str) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT])
    path = folder / "corpus.jsonl"
    path.write_bytes(line + path.read_bytes())
    _assert_says(_refusal("jsonl", folder), "corpus.jsonl: row 1 is no JSON object", mend)


@pytest.mark.parametrize("line", ["{not json}\n", "[1]\n", '"text"\n', "[{}, "])
def test_jsonl_row_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT])
    path = folder / "corpus.jsonl"
    path.write_text(line + path.read_text())
    _assert_says(_refusal("jsonl", folder), "corpus.jsonl: row 1 is no JSON object", "one JSON object a line")


@pytest.mark.parametrize("ending", ["gz", "zst", "parquet", "parquet.gz", "zip"])
def test_half_downloaded_file_is_refused(tmp_path: Path, ending: str) -> None:
    folder = write_own(tmp_path / "in", [TASK], [{"doc_id": f"d{i}", "text": f"{i * i * i} " * 9} for i in range(5000)])
    plain = (folder / "corpus.jsonl").read_bytes()
    dataset = "jsonl"
    if ending != "zip":
        (folder / "corpus.jsonl").unlink()
    if ending.startswith("parquet"):
        dataset = "beir"
        rows = [json.loads(line) for line in plain.splitlines()]
        table = pa.table({"_id": [row["doc_id"] for row in rows], "text": [row["text"] for row in rows]})
        pq.write_table(table, folder / "corpus.parquet")
        write_jsonl(folder / "queries.jsonl", {"_id": "a", "text": "a?"})
        (folder / "qrels").mkdir()
        (folder / "qrels" / "test.tsv").write_text("a\td1\t1\n")
        path = folder / "corpus.parquet"
        if ending == "parquet.gz":
            path = path.rename(folder / "corpus.parquet.gz")
            path.write_bytes(gzip.compress(path.read_bytes()))
    elif ending == "zip":
        path = folder.parent / "data.zip"
        shutil.make_archive(str(path.with_suffix("")), "zip", folder)
        folder = path
    else:
        path = folder / f"corpus.jsonl.{ending}"
        path.write_bytes(gzip.compress(plain) if ending == "gz" else pa.Codec("zstd").compress(plain, asbytes=True))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _assert_says(_refusal(dataset, folder), path.name, "download it again")


def test_table_with_a_cut_row_is_refused(tmp_path: Path) -> None:
    folder = _copy("wands", tmp_path)
    path = folder / "dataset" / "label.csv"
    path.write_text(path.read_text().rpartition("\t")[0])
    _assert_says(_refusal("wands", folder), "dataset/label.csv: row 8 has 3 cells, the header 4", "download")


def test_table_with_an_open_quote_is_refused(tmp_path: Path) -> None:
    folder = _copy("wands", tmp_path)
    _edit(folder / "dataset" / "query.csv", "salon chair", '"salon chair')
    _assert_says(_refusal("wands", folder), "dataset/query.csv: row 1 cannot be read", "quotes")


def test_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    folder = _copy("wands", tmp_path)
    path = folder / "dataset" / "query.csv"
    path.write_bytes(path.read_bytes().replace(b"salon", b"sal\xf6n"))
    _assert_says(_refusal("wands", folder), "dataset/query.csv: about row 1 is no UTF-8")


def test_git_lfs_pointer_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    folder = _copy("esci", tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "shopping_queries_dataset_products.parquet").write_text(pointer)
    _assert_says(_refusal("esci", folder), "products.parquet: it is a Git LFS pointer", "git lfs pull")


@pytest.mark.parametrize("line", ["a Q0 d1 high", "a Q0", "a Q0 d1 1 run"])
def test_qrels_line_that_is_no_judgement_is_named(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "topics.tsv").write_text("a\ta?\n")
    (folder / "qrels.txt").write_text(f"a Q0 d1 1\n{line}\n")
    _assert_says(_refusal("trec", folder), f"qrels.txt: row 2: {line!r} is no judgement")


@pytest.mark.parametrize("grade", ["inf", "-Infinity", "nan", "1e999"])
def test_grade_that_is_not_finite_is_named_in_either_layout(tmp_path: Path, grade: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "topics.tsv").write_text("a\ta?\n")
    (folder / "qrels.txt").write_text(f"a Q0 d1 1\na Q0 d2 {grade}\n")
    _assert_says(_refusal("trec", folder), f"qrels.txt: row 2: the grade {grade!r} is not finite; write a number.")
    write_jsonl(folder / "queries.jsonl", {"_id": "a", "text": "a?"})
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(f"a\td1\t{grade}\n")
    _assert_says(_refusal("beir", folder), f"qrels/test.tsv: row 1: the grade {grade!r} is not finite")


@pytest.mark.parametrize("metadata", ["url", ["url"], 3, [], ""])
def test_metadata_that_is_no_object_is_named(tmp_path: Path, metadata: Any) -> None:
    folder = tmp_path / "in"
    (folder / "qrels").mkdir(parents=True)
    (folder / "qrels" / "test.tsv").write_text("a\td1\t1\n")
    write_jsonl(folder / "queries.jsonl", {"_id": "a", "text": "a?"})
    rows = [{"_id": "d1", "text": "x", "metadata": None}, {"_id": "d2", "text": "y", "metadata": metadata}]
    write_jsonl(folder / "corpus.jsonl", *rows)
    _assert_says(
        _refusal("beir", folder),
        f"corpus.jsonl: row 2: column 'metadata': {metadata!r} is no object; write a JSON object.",
    )


def test_topic_without_a_tab_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "topics.tsv").write_text("a where?\n")
    (folder / "qrels.txt").write_text("a Q0 d1 1\n")
    _assert_says(_refusal("trec", folder), "topics.tsv: row 1: 'a where?' has no tab")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gains": {"d1": -1}}, ["column 'gains'", "holds -1"]),
        ({"gains": {"d1": "high"}}, ["holds 'high'"]),
        ({"gains": "d1"}, ["'d1' is neither an object nor a list"]),
        ({"query_id": ""}, ["column 'query_id': '' is no id"]),
        ({"query_id": True}, ["True is no id"]),
        ({"prompt": 3}, ["column 'prompt': 3 is no text"]),
        ({"split": "dev"}, ["'dev' is outside the splits", "'train', 'validation', 'test'"]),
        ({"locale": "english"}, ["column 'locale': 'english' is no language tag; write one such as en, de or zh-TW"]),
        ({"excluded": "d2"}, ["column 'excluded': 'd2' is no list"]),
        ({"answers": [None]}, ["holds something else than strings"]),
        ({"metadata": [1]}, ["column 'metadata': [1] is no object"]),
    ],
)
def test_own_row_with_a_wrong_value_is_named(tmp_path: Path, changed: dict[str, Any], words: list[str]) -> None:
    folder = write_own(tmp_path / "in", [{**TASK, **changed}], [DOCUMENT])
    _assert_says(_refusal("jsonl", folder), "tasks.jsonl: row 1: ", *words)


def test_gold_ids_of_another_kind_than_the_corpus_has_are_refused(tmp_path: Path) -> None:
    strange = [{**TASK, "query_id": name, "gains": {"no-1": 1}} for name in "bc"]
    _assert_says(
        _refusal("jsonl", write_own(tmp_path / "in", strange, [DOCUMENT])),
        "of 2 questions none has a relevant document in the corpus ('b' names 'no-1'); write ids as the corpus has them.",
    )
    partly = {**TASK, "query_id": "d", "gains": ["d1", "no-2"]}
    out = run_prepare("jsonl", write_own(tmp_path / "some", [TASK, *strange, partly], [DOCUMENT]), tmp_path / "out")
    assert len(out.manifest["missing_gold"]) == 3
    assert out.manifest["notes"] == [
        "3 tasks name relevant documents that the corpus lacks ('b' names 'no-1', 'c' names 'no-1', 'd' names 'no-2'), which no search "
        "finds; 2 of them have no other and score 0. Correct the ids if they are mistyped."
    ]


def test_question_that_is_empty_is_dropped_and_listed(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK, {**TASK, "query_id": "b", "prompt": " "}], [DOCUMENT])
    out = run_prepare("jsonl", folder, tmp_path / "out")
    assert out.manifest["dropped"] == {"empty question": {"count": 1, "ids": ["b"]}}


def test_gold_id_that_its_question_excludes_gains_nothing(tmp_path: Path) -> None:
    task = {**TASK, "gains": ["d1", "d2"], "excluded": ["d2"]}
    out = run_prepare("jsonl", write_own(tmp_path / "in", [task], [DOCUMENT]), tmp_path / "out")
    assert out.gains() == {"a": {"d1": 1.0}}
    assert out.manifest["merged"] == {"gold ids that their question excludes (no gain)": 1}


def test_data_set_without_any_question_left_gives_the_reasons(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [{**TASK, "gains": []}], [DOCUMENT])
    _assert_says(_refusal("jsonl", folder), "no question is left (1 dropped: no document with a gain above 0)")


def test_answer_that_is_not_at_its_offset_is_named(tmp_path: Path) -> None:
    folder = _copy("mlqa", tmp_path)
    path = folder / "MLQA_V1" / "dev" / "dev-context-de-question-de.json"
    content = json.loads(path.read_text())
    content["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] += 1
    path.write_text(json.dumps(content))
    _assert_says(_refusal("mlqa", folder), path.name, "column 'answer_start'", "'410 Metern'", "count characters")


def test_nugget_of_another_question_is_refused(tmp_path: Path) -> None:
    folder = _copy("freshstack", tmp_path)
    path = folder / "queries-oct-2024" / "godot" / "test-00000-of-00001.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[1]["nuggets"][0]["_id"] = "76185522_0"
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    _assert_says(
        _refusal("freshstack", folder), "row 2: column 'nuggets'", "'76185522_0', a nugget of another question"
    )


def test_wrong_canary_fails_without_showing_anything(tmp_path: Path) -> None:
    folder = _copy("browsecomp_plus", tmp_path)
    (folder / "CANARY.txt").write_text("another canary")
    message = _refusal("browsecomp_plus", folder)
    _assert_says(message, "test_encrypted.jsonl: row 1: column 'query': its value does not decrypt", "canary")
    rows = [json.loads(line) for line in (folder / "test_encrypted.jsonl").read_text().splitlines()]
    assert not any(row["query"][:12] in message for row in rows)


def test_canary_that_is_nowhere_says_where_to_get_it(tmp_path: Path) -> None:
    folder = _copy("browsecomp_plus", tmp_path)
    (folder / "CANARY.txt").unlink()
    _assert_says(_refusal("browsecomp_plus", folder), "no canary is there", "dataset.canary_file")
    _assert_says(_refusal("browsecomp_plus", folder, "dataset.canary_file=/no/file"), "/no/file cannot be read")


def test_rows_that_differ_from_the_published_qrels_are_refused_in_secret(tmp_path: Path) -> None:
    folder = _copy("browsecomp_plus", tmp_path)
    (folder / "topics-qrels" / "qrel_evidence.txt").write_text("3 Q0 11 1\n1266 Q0 11 1\n")
    message = _refusal("browsecomp_plus", folder)
    _assert_says(message, "column 'evidence_docs': its value differs from the published qrels")
    assert all(query["text"] not in message for query in expected("browsecomp_plus")["queries"])
