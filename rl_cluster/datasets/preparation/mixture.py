"""Several training sets as one: each is prepared by itself, then their shares are put together.

A set that is whole is kept in the working folder, as are the rows of the one that is written, so that an interrupted run goes on
where it was. Which tasks of a set are taken depends on their ids alone; the mixture's order interleaves the sets. A set without documents is left out: nothing of
it could be searched, and no run would train on such a folder.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl_cluster.datasets.converters import get_converter
from rl_cluster.datasets.preparation.corpus_writer import open_corpus_file
from rl_cluster.datasets.preparation.hub import HUB, locate
from rl_cluster.datasets.preparation.leakage import find_leakage
from rl_cluster.datasets.preparation.pipeline import FORMAT_VERSION, Options, convert, input_key, write_manifest
from rl_cluster.datasets.preparation.progress import PreparationProgress
from rl_cluster.datasets.preparation.settings import MixtureSet, MixtureSettings, converter_settings
from rl_cluster.datasets.preparation.splits import position
from rl_cluster.errors import DataError

_ORDER = ("train", "validation", "test")


def mix(
    source: str, settings: MixtureSettings, options: Options, work: Path, folder: Path, progress: PreparationProgress
) -> dict[str, Any]:
    """Prepares every set under `work` and writes the mixture into `folder`; returns its manifest. Raises DataError."""
    test_fraction = options.test_fraction or settings.test_fraction
    splits = [split for split in _ORDER if split in settings.splits or (split == "test" and test_fraction)]
    member_options = replace(
        options,
        validation_fraction=options.validation_fraction if "validation" in splits else 0.0,
        test_fraction=test_fraction,
        compare_with=(),
        splits=settings.splits,
    )
    parts: dict[str, Path] = {}
    for name, member in settings.sets.items():
        parts[name] = _prepared_set(name, member, source, member_options, work, progress)
    manifests = {name: json.loads((part / "manifest.json").read_text(encoding="utf-8")) for name, part in parts.items()}
    left_out = {} if options.tasks_only else _without_documents(manifests, settings)
    for name in left_out:
        del parts[name], manifests[name]
    if not parts:
        raise DataError(
            f"source={source}: no set of {settings.name} has a document; put a corpus there, or set tasks_only=true."
        )
    tables = {name: pq.read_table(part / "tasks.parquet") for name, part in parts.items()}
    taken = {name: _taken(tables[name], splits, settings.sets[name]) for name in tables}
    _apply_weights(taken, settings)
    _write_tasks(folder / "tasks.parquet", tables, taken)
    _write_corpora(folder / "corpus.parquet", parts)
    empty = [split for split in _ORDER if not any(rows.get(split) for rows in taken.values())]
    manifest = {
        "format": FORMAT_VERSION,
        "dataset": settings.name,
        "title": settings.name,
        "licence": {name: manifest["licence"] for name, manifest in manifests.items()},
        "settings": {
            **settings.model_dump(mode="json", exclude={"sets": {name: {"source"} for name in settings.sets}}),
            "validation_fraction": member_options.validation_fraction,
            "test_fraction": test_fraction,
        },
        "counts": {
            "tasks": {split: {name: len(rows[split]) for name, rows in taken.items()} for split in splits},
            "documents": {name: manifest["counts"]["documents"] for name, manifest in manifests.items()},
        },
        "sets": manifests,
        "left_out": left_out,
        "notes": [f"There is no {split} task, and training needs some of each split." for split in empty],
        "leakage": find_leakage(folder, options.compare_with),
    }
    return write_manifest(folder, manifest)


def _without_documents(manifests: dict[str, dict[str, Any]], settings: MixtureSettings) -> dict[str, dict[str, Any]]:
    """The sets that have none, with their number of tasks; not those that are asked for as tasks alone."""
    return {
        name: {"tasks": sum(manifest["counts"]["tasks"].values()), "reason": "its corpus has no document"}
        for name, manifest in manifests.items()
        if not manifest["counts"]["documents"] and not settings.sets[name].tasks_only
    }


def _prepared_set(
    name: str, member: MixtureSet, source: str, options: Options, work: Path, progress: PreparationProgress
) -> Path:
    settings = converter_settings(member.settings, f"dataset.sets.{name}.settings.")
    card = get_converter(settings.name).CARD
    located = locate(member.source or _member_source(source, name), card, member.revision)
    options = replace(options, tasks_only=options.tasks_only or member.tasks_only)
    done, key = work / name, input_key(located, member.settings, options)
    if (done / "manifest.json").is_file() and (done / ".key").read_text(encoding="utf-8") == key:
        progress.say(f"{name}: kept from the run before")
        return done
    progress.say(f"{name}: from {located.where}")
    scratch = work / f".{name}.partial"
    for folder in (done, scratch):
        shutil.rmtree(folder, ignore_errors=True)
    scratch.mkdir(parents=True)
    convert(located, settings, options, scratch, work / f".{name}.rows", progress)
    (scratch / ".key").write_text(key, encoding="utf-8")
    scratch.rename(done)
    return done


def _member_source(source: str, name: str) -> str:
    """The folder of a set in the mixture's folder; underscores may be hyphens there."""
    root = Path(source).expanduser()
    if source == HUB:
        return HUB
    if not root.is_dir():
        raise DataError(f"source={source}: it is no folder; give the one that holds a folder for each set, or `hub`.")
    for candidate in (name, name.replace("_", "-")):
        for path in (root / candidate, root / f"{candidate}.zip"):
            if path.exists():
                return str(path)
    raise DataError(
        f"source={source}: it has no folder {name!r}; put it there, set dataset.sets.{name}.source, or leave the set out with "
        f"~dataset.sets.{name}."
    )


def _taken(table: pa.Table, kept: Sequence[str], member: MixtureSet) -> dict[str, list[int]]:
    """Row numbers by split, in the order in which they are taken; `cap` cuts training tasks and the others alike."""
    ids, splits = table.column("task_id").to_pylist(), table.column("split").to_pylist()
    rows: dict[str, list[int]] = {split: [] for split in kept}
    for number in sorted(range(len(ids)), key=lambda i: _rank(ids[i])):
        if splits[number] in rows:
            rows[splits[number]].append(number)
    size = len(rows.get("train", ()))
    return rows if member.cap is None or not size else _scaled(rows, min(1.0, member.cap / size))


def _apply_weights(taken: dict[str, dict[str, list[int]]], settings: MixtureSettings) -> None:
    """Cuts sets until their training tasks stand in the ratio of the weights, as few as possible."""
    weights = {name: weight for name in taken if (weight := settings.sets[name].weight) is not None}
    if not weights:
        return
    sizes = {name: len(taken[name].get("train", ())) for name in weights}
    empty = next((name for name, size in sizes.items() if not size), None)
    if empty is not None:
        raise DataError(
            f"dataset.sets.{empty}.weight: the set has no training task to weigh; leave it out with ~dataset.sets.{empty}."
        )
    unit = min(sizes[name] / weight for name, weight in weights.items())
    for name, weight in weights.items():
        taken[name] = _scaled(taken[name], unit * weight / sizes[name])


def _scaled(rows: dict[str, list[int]], share: float) -> dict[str, list[int]]:
    # Rounded first: a product that is a hair over a whole number must not take one task more.
    return {split: found[: math.ceil(round(len(found) * share, 6))] for split, found in rows.items()}


def _rank(task_id: str) -> float:
    return position(f"order/{task_id}")


def _write_tasks(path: Path, tables: dict[str, pa.Table], taken: dict[str, dict[str, list[int]]]) -> None:
    parts = []
    for name, rows in taken.items():
        numbers = [number for found in rows.values() for number in found]
        parts.append(tables[name].take(pa.array(numbers, pa.int64())))
    table = pa.concat_tables(parts)
    ids, splits = table.column("task_id").to_pylist(), table.column("split").to_pylist()
    order = sorted(range(len(ids)), key=lambda i: (_ORDER.index(splits[i]), _rank(ids[i])))
    pq.write_table(table.take(order), path, compression="zstd")


def _write_corpora(path: Path, parts: dict[str, Path]) -> None:
    """Row groups are copied as they are. Raises DataError where two sets have a corpus of one name."""
    owner: dict[str, str] = {}
    with open_corpus_file(path) as writer:
        for name, part in parts.items():
            file = pq.ParquetFile(part / "corpus.parquet")
            for number in range(file.num_row_groups):
                table = file.read_row_group(number)
                for corpus in table.column("corpus").unique().to_pylist():
                    if owner.setdefault(corpus, name) != name:
                        raise DataError(
                            f"the sets {owner[corpus]} and {name} both have a corpus {corpus!r}; rename one."
                        )
                writer.write_table(table, row_group_size=len(table))
