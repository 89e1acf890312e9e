"""Every published set in its published layout gives what its `expected.json` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_cluster.datasets.tables import MISSING
from tests.helpers.prepared import FIXTURES, JUDGED_SETS, Prepared, expected, prepare_fixture

# Where expected.json knows two readings, the default one.
GAINS = {"browsecomp_plus": "gains_evidence", "freshstack": "gains_official_sum"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    out = tmp_path_factory.mktemp("prepared")
    return {name: prepare_fixture(name, out) for name in JUDGED_SETS}


@pytest.mark.parametrize("name", JUDGED_SETS)
def test_gains_default_settings_are_the_expected_ones(prepared: dict[str, Prepared], name: str) -> None:
    wanted = {query["query_id"]: query[GAINS.get(name, "gains")] for query in expected(name)["queries"]}
    assert prepared[name].gains() == wanted


@pytest.mark.parametrize("name", JUDGED_SETS)
def test_corpus_default_settings_has_the_expected_size(prepared: dict[str, Prepared], name: str) -> None:
    wanted = expected(name)
    size = wanted["corpus_size"] if "corpus_size" in wanted else sum(wanted["corpus_sizes"].values())
    assert len(prepared[name].documents) == size


@pytest.mark.parametrize("name", JUDGED_SETS)
def test_tasks_default_settings_have_the_expected_properties(prepared: dict[str, Prepared], name: str) -> None:
    for query in expected(name)["queries"]:
        task = prepared[name].tasks[query["query_id"]]
        assert task["task_id"] == f"{name}/{query['query_id']}"
        assert task["metadata"].get(MISSING, []) == query.get("missing_from_corpus", [])
        for key, value in {
            "split": task["split"],
            "locale": task["locale"],
            "excluded": task["excluded"],
            "answers": task["answers"],
            "answer": next(iter(task["answers"]), None),
            "text": task["prompt"],
            "judged_zero": task["metadata"].get("judged_zero"),
            "unresolved": task["metadata"].get("unresolved"),
            "subtopics": task["metadata"].get("subtopics"),
            "hard_negatives": task["metadata"].get("hard_negatives"),
        }.items():
            if key in query:
                assert value == query[key], (query["query_id"], key)


@pytest.mark.parametrize("name", [name for name in JUDGED_SETS if "text_of" in expected(name)])
def test_documents_published_columns_give_the_expected_text(prepared: dict[str, Prepared], name: str) -> None:
    texts = prepared[name].texts()
    assert {doc_id: texts[doc_id] for doc_id in expected(name)["text_of"]} == expected(name)["text_of"]


@pytest.mark.parametrize("name", [name for name in JUDGED_SETS if "dropped" in expected(name)])
def test_dropped_questions_stand_in_the_manifest_with_their_reason(prepared: dict[str, Prepared], name: str) -> None:
    dropped = prepared[name].manifest["dropped"]
    found = {query_id: reason for reason, part in dropped.items() for query_id in part["ids"]}
    for wanted in expected(name)["dropped"]:
        query_id = wanted["query_id"].split(" ")[0]
        assert found[query_id].startswith(wanted["reason"])
    assert len(found) == len(expected(name)["dropped"]) == prepared[name].manifest["counts"]["dropped"]


def test_frames_prompt_and_reasoning_types_are_clean(prepared: dict[str, Prepared]) -> None:
    task = prepared["frames"].tasks["0"]
    assert task["prompt"] == task["prompt"].strip()
    assert task["metadata"]["reasoning_types"] == expected("frames")["reasoning_types_of_query_0"]


def test_bright_each_task_has_its_own_corpus(prepared: dict[str, Prepared]) -> None:
    sizes = prepared["bright"].manifest["counts"]["documents"]
    assert sizes == {f"bright/{task}": size for task, size in expected("bright")["corpus_sizes"].items()}
    assert all(
        task["corpus"] == f"bright/{query_id.split('/')[0]}" for query_id, task in prepared["bright"].tasks.items()
    )


def test_bright_long_documents_use_their_own_gold_ids(tmp_path: Path) -> None:
    out = prepare_fixture("bright", tmp_path, "dataset.documents=long_documents")
    assert out.gains()["biology/0"] == expected("bright")["queries"][0]["gains_long"]
    assert out.manifest["dropped"]["no gold_ids_long"]["count"] == 3


def test_esci_small_version_leaves_the_large_one_out(tmp_path: Path) -> None:
    assert "105" not in prepare_fixture("esci", tmp_path, "dataset.version=small").tasks


def test_esci_gold_of_exact_alone_drops_questions_without_one(tmp_path: Path) -> None:
    out = prepare_fixture("esci", tmp_path, "dataset.gains.S=0.0", "dataset.gains.C=0.0")
    assert set(out.tasks) == {"101", "103", "104", "105"}


def test_esci_locales_leave_other_products_out(tmp_path: Path) -> None:
    out = prepare_fixture("esci", tmp_path, "dataset.locales=[jp]")
    assert list(out.manifest["counts"]["documents"].items()) == [("esci/jp", 1)]
    assert set(out.tasks) == {"104"}


def test_musique_documents_are_named_by_a_hash_of_title_and_text(prepared: dict[str, Prepared]) -> None:
    titles = {doc_id: row["title"] for (_, doc_id), row in prepared["musique"].documents.items()}
    assert titles == expected("musique")["corpus"]


def test_freshstack_binary_gains_count_no_nuggets(tmp_path: Path) -> None:
    wanted = {query["query_id"]: query["gains_binary"] for query in expected("freshstack")["queries"]}
    assert prepare_fixture("freshstack", tmp_path, "dataset.gains=binary").gains() == wanted


def test_browsecomp_plus_gold_is_another_reading(tmp_path: Path) -> None:
    wanted = {query["query_id"]: query["gains_gold"] for query in expected("browsecomp_plus")["queries"]}
    assert prepare_fixture("browsecomp_plus", tmp_path, "dataset.relevant=gold").gains() == wanted


def test_browsecomp_plus_output_keeps_itself_out_of_version_control(prepared: dict[str, Prepared]) -> None:
    out = prepared["browsecomp_plus"]
    assert (out.folder / ".gitignore").read_text() == "*\n"
    manifest = (out.folder / "manifest.json").read_text(encoding="utf-8")
    for query in expected("browsecomp_plus")["queries"]:
        assert query["text"] not in manifest
        assert out.tasks[query["query_id"]]["split"] == "test"
    assert (FIXTURES / "browsecomp_plus" / "CANARY.txt").read_text() not in manifest


def test_wands_other_gains_are_a_setting(tmp_path: Path) -> None:
    out = prepare_fixture("wands", tmp_path, "dataset.gains.Exact=2", "dataset.gains.Partial=1")
    assert out.gains()["0"] == {"0": 2.0, "1": 1.0}
    assert out.manifest["settings"]["gains"] == {"Exact": 2.0, "Partial": 1.0, "Irrelevant": 0.0}


def test_wixqa_links_leave_their_anchors() -> None:
    from rl_cluster.datasets.converters.wixqa import without_urls

    text = "See [Edit DNS](https://example.org/dns) and ![a picture](x.png), or https://example.org/a?b=c."
    assert without_urls(text) == "See Edit DNS and a picture, or "


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ("https://en.wikipedia.org/wiki/HIV/AIDS", "enwiki:HIV/AIDS"),
        (" https://en.m.wikipedia.org/wiki/caf%C3%A9?x=1#y ", "enwiki:Café"),
        ("en.wikipedia.org/wiki/Module:Road", "enwiki:Module:Road"),
        ("https://w.wiki/ZZZZ", None),
        ("https://en.wikipedia.org/w/index.php?title=Orbel", None),
    ],
)
def test_frames_page_id_of_odd_links(link: str, page: str | None) -> None:
    from rl_cluster.datasets.converters.frames import page_id

    assert page_id(link) == page
