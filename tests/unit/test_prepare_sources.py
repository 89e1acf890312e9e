"""Folders, zip archives, compressed files, hub ids, and the layouts that one set is published in."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from rl_cluster.datasets.preparation import hub
from rl_cluster.errors import DataError
from tests.helpers.full_disk import full_disk
from tests.helpers.prepared import FIXTURES, prepare_fixture, run_prepare, write_jsonl, write_own

TASK = {"query_id": "a", "prompt": "a?", "gains": ["d1"]}
DOCUMENT = {"doc_id": "d1", "text": "x"}


def _zip(folder: Path, archive: Path) -> Path:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(folder.rglob("*")):
            out.write(path, path.relative_to(folder))
    return archive


@pytest.mark.parametrize("inside", ["wands.zip", "sub/wands.zip"])
def test_zip_archive_gives_the_tables_of_its_folder(tmp_path: Path, inside: str) -> None:
    archive = _zip(FIXTURES / "wands", tmp_path / "in" / inside)
    source = archive if inside == "wands.zip" else tmp_path / "in"
    zipped = run_prepare("wands", source, tmp_path / "zipped")
    plain = prepare_fixture("wands", tmp_path)
    assert zipped.manifest["sha256"] == plain.manifest["sha256"]
    assert [file["name"] for file in zipped.manifest["source"]["files"]] == [
        Path(inside).name if source == archive else inside
    ]


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (6, 0x01, "dataset/label.csv cannot be unpacked (File 'dataset/label.csv' is encrypted, password required for extraction)"),
        (8, 9, "dataset/label.csv cannot be unpacked (That compression method is not supported)"),
        (8, 77, "dataset/label.csv cannot be unpacked (That compression method is not supported)"),
        (4, 99, "it cannot be unpacked (zip file version 9.9)"),
    ],
    ids=["password", "deflate64", "unknown", "version"],
)  # fmt: skip
def test_zip_archive_that_zipfile_cannot_unpack_is_one_sentence(
    tmp_path: Path, at: int, value: int, problem: str
) -> None:
    """Version (at 4), flags (6) and method (8) of a member's header stand two bytes further in the archive's directory."""
    archive = _zip(FIXTURES / "wands", tmp_path / "wands.zip")
    content = bytearray(archive.read_bytes())
    for mark, place in ((b"PK\x03\x04", at), (b"PK\x01\x02", at + 2)):
        for found in re.finditer(re.escape(mark), bytes(content)):
            content[found.start() + place] = value
    archive.write_bytes(content)
    with pytest.raises(DataError) as error:
        run_prepare("wands", archive, tmp_path / "out")
    assert str(error.value) == (
        f"{archive}: {problem}; unpack the archive with another program and give the folder of its files in its place."
    )


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_zip_archive_whose_member_is_damaged_from_its_start_is_one_sentence(tmp_path: Path, method: int) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT])
    archive = tmp_path / "own.zip"
    with zipfile.ZipFile(archive, "w", method) as out:
        for path in folder.iterdir():
            out.write(path, path.name)
        member = out.getinfo("corpus.jsonl")
    content = bytearray(archive.read_bytes())
    start = member.header_offset + 30 + len(member.filename)
    content[start : start + member.compress_size] = b"\xff" * member.compress_size
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"^corpus\.jsonl: it cannot be opened \(.*\); download it again\.$"):
        run_prepare("jsonl", archive, tmp_path / "out")


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_compressed_files_are_found_under_their_plain_names(tmp_path: Path, ending: str) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT])
    plain = (folder / "corpus.jsonl").read_bytes()
    (folder / "corpus.jsonl").unlink()
    if ending == "gz":
        (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(plain))
    else:
        (folder / "corpus.jsonl.zst").write_bytes(pa.Codec("zstd").compress(plain, asbytes=True))
    assert run_prepare("jsonl", folder, tmp_path / "out").documents["own", "d1"]["text"] == "x"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("packing", ["zip", "gz"])
def test_packed_parquet_gives_the_tables_of_its_folder_and_leaves_nothing(
    tmp_path: Path, scratch: Path, packing: str
) -> None:
    source = tmp_path / f"esci.{packing}"
    if packing == "zip":
        _zip(FIXTURES / "esci", source)
    else:
        shutil.copytree(FIXTURES / "esci", source)
        for path in source.glob("*.parquet"):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    packed = run_prepare("esci", source, tmp_path / "packed")
    assert packed.manifest["sha256"] == prepare_fixture("esci", tmp_path).manifest["sha256"]
    assert list(scratch.iterdir()) == []


def test_packed_parquet_without_room_for_it_is_one_sentence_and_leaves_nothing(tmp_path: Path, scratch: Path) -> None:
    archive = _zip(FIXTURES / "esci", tmp_path / "esci.zip")
    with full_disk(1000), pytest.raises(DataError, match=f"unpacked into {scratch} .* make room there or set TMPDIR"):
        run_prepare("esci", archive, tmp_path / "out")
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("layout", ["text", "raw"])
def test_enterprise_rag_bench_other_layouts_read_the_same_document(tmp_path: Path, layout: str) -> None:
    parquet = prepare_fixture("enterprise_rag_bench", tmp_path / "parquet")
    other = prepare_fixture("enterprise_rag_bench", tmp_path / layout, f"dataset.documents={layout}")
    key = ("enterprise_rag_bench", "dsid_7c840e0b157a88fa3d19bb09d5ff56db")
    for column in ("title", "text"):
        assert other.documents[key][column] == parquet.documents[key][column]
    assert len(other.documents) == (2 if layout == "text" else 1)
    assert other.gains() == parquet.gains()


def test_enterprise_rag_bench_zipped_export_with_titles_beside_it(tmp_path: Path) -> None:
    doc_id = "dsid_7c840e0b157a88fa3d19bb09d5ff56db"
    folder = tmp_path / "export"
    (folder / "confluence").mkdir(parents=True)
    (folder / "confluence" / f"{doc_id}__runbook.txt").write_text("Line one.\nLine two.\n")
    sidecar = [{"filename": f"{doc_id}__runbook.txt", "id": doc_id, "title": "Runbook"}]
    (folder / ".onyx_metadata.json").write_text(json.dumps(sidecar))
    _zip(folder, tmp_path / "in" / "dataset.zip")
    shutil.copy(FIXTURES / "enterprise_rag_bench" / "questions.jsonl", tmp_path / "in")
    document = run_prepare("enterprise_rag_bench", tmp_path / "in", tmp_path / "out").documents[
        "enterprise_rag_bench", doc_id
    ]
    assert (document["title"], document["text"]) == ("Runbook", "Line one.\nLine two.")


def test_esci_products_with_renamed_columns_are_read(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "esci", tmp_path / "in")
    fields = {
        "id": "B0FIX00001",
        "title": "T",
        "bullets": "b",
        "brand": None,
        "description": "<p>x</p>",
        "locale": "us",
    }
    write_jsonl(tmp_path / "in" / "products.jsonl", {"put": "id:p", "fields": fields})
    overrides = ("dataset.products=products.jsonl", "dataset.locales=[us]")
    out = run_prepare("esci", tmp_path / "in", tmp_path / "out", *overrides)
    assert out.texts() == {"us:B0FIX00001": "T\nb\nx"}


def test_browsecomp_plus_canary_from_the_published_script_or_a_named_file(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(FIXTURES / "browsecomp_plus", folder)
    canary = (folder / "CANARY.txt").read_text()
    (folder / "CANARY.txt").rename(tmp_path / "named.txt")
    named = run_prepare("browsecomp_plus", folder, tmp_path / "a", f"dataset.canary_file='{tmp_path}/named.txt'")
    (folder / "decrypt_dataset.py").write_text(f'import base64\nDEFAULT_CANARY = "{canary}"\n')
    found = run_prepare("browsecomp_plus", folder, tmp_path / "b")
    assert named.tasks == found.tasks


def test_source_that_is_a_hub_id_is_fetched_and_its_commit_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "snapshots" / commit
    shutil.copytree(FIXTURES / "frames", snapshot)
    asked = []

    def fetch(repository: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
        asked.append((repository, revision))
        return snapshot

    monkeypatch.setattr(hub, "_fetch", fetch)
    out = run_prepare("frames", "google/frames-benchmark", tmp_path / "out")
    assert asked == [("google/frames-benchmark", "58d9fb6330f3ab1316d1eca12e5e8ef23dcc22ef")]
    assert out.manifest["source"]["kind"] == "hub"
    assert out.manifest["source"]["revision"] == commit


def test_source_hub_without_an_answer_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: object, **kwargs: object) -> str:
        raise OSError("no route to host\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(DataError) as error:
        run_prepare("wixqa", "hub", tmp_path / "out")
    assert str(error.value) == (
        "source=Wix/WixQA: it is no folder here, and the hub does not give it (no route to host); download it and give its folder."
    )


@pytest.mark.parametrize(
    ("dataset", "source", "words"),
    [
        ("wands", "/no/such/folder", "/no/such/folder: it is neither a folder"),
        ("wands", "not a hub id", "not a hub id: it is neither a folder"),
        ("wands", "hub", "source=hub: this data set has no repository on the hub"),
    ],
)
def test_source_that_is_nothing_is_refused(tmp_path: Path, dataset: str, source: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        run_prepare(dataset, source, tmp_path / "out")


def test_source_in_a_git_clone_notes_its_commit(tmp_path: Path) -> None:
    folder = write_own(tmp_path / "in", [TASK], [DOCUMENT])
    (folder / ".git" / "refs" / "heads").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "refs" / "heads" / "main").write_text("abc123\n")
    assert run_prepare("jsonl", folder, tmp_path / "out").manifest["source"]["revision"] == "abc123"
