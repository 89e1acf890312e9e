"""One data set: reads it with its converter, checks and splits it, and writes the three files of a prepared folder."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rl_cluster.datasets.converters import get_converter
from rl_cluster.datasets.preparation.answer_matching import AnswerMatcher
from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft
from rl_cluster.datasets.preparation.corpus_writer import CorpusWriter
from rl_cluster.datasets.preparation.ids import document_id
from rl_cluster.datasets.preparation.kept_rows import KeptRows
from rl_cluster.datasets.preparation.leakage import find_leakage
from rl_cluster.datasets.preparation.prepared_documents import prepared_corpora, prepared_documents
from rl_cluster.datasets.preparation.progress import PreparationProgress
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.source import Source, sha256_of
from rl_cluster.datasets.preparation.splits import held_out_split
from rl_cluster.datasets.tables import MISSING, write_tasks
from rl_cluster.datasets.task import Document, Task
from rl_cluster.errors import DataError, RLClusterError

FORMAT_VERSION = 3
FILES = ("tasks.parquet", "corpus.parquet", "manifest.json")
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Options:
    """What is decided for every data set alike. `splits`: the published ones that are kept; `answer_documents`: the most
    documents that may hold an answer of a question that is judged by them, 0 to judge none so; `documents`: the prepared folder
    that gives the documents, in place of the set's own."""

    validation_fraction: float = 0.05
    test_fraction: float = 0.0
    tasks_only: bool = False
    compare_with: tuple[Path, ...] = ()
    splits: tuple[str, ...] = _SPLITS
    answer_documents: int = 0
    documents: Path | None = None


def input_key(source: Source, settings: Mapping[str, Any], options: Options) -> str:
    """Changes with the settings and with any input file's size or time."""
    files = [(file.name, file.size, file.path.stat().st_mtime_ns) for file in source.files]
    lent = None if options.documents is None else options.documents / FILES[1]
    found = [lent.stat().st_size, lent.stat().st_mtime_ns] if lent is not None and lent.is_file() else None
    state = [FORMAT_VERSION, settings, repr(options), source.revision, files, found]
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def convert(
    source: Source,
    settings: ConverterSettings,
    options: Options,
    folder: Path,
    kept: Path,
    progress: PreparationProgress,
) -> dict[str, Any]:
    """Writes `tasks.parquet`, `corpus.parquet` and, last, `manifest.json` into an existing folder; returns the manifest.

    The same files and settings give the same bytes. What is written of the corpus is kept in the folder `kept` until it is whole,
    for a run after an interruption. Raises DataError for whatever in the source is malformed.
    """
    rows = KeptRows(kept, input_key(source, settings.model_dump(mode="json"), options))
    try:
        manifest = _convert(source, settings, options, folder, rows, progress)
    except RLClusterError:
        rows.discard()  # what was wrong is mended first, and then the input is another
        raise
    rows.discard()
    return manifest


def _convert(
    source: Source,
    settings: ConverterSettings,
    options: Options,
    folder: Path,
    kept: KeptRows,
    progress: PreparationProgress,
) -> dict[str, Any]:
    converter, report = get_converter(settings.name), Report()
    card, label = converter.CARD, getattr(settings, "label", settings.name)
    source.watch = progress.reading
    drafts = _some(_kept(converter.tasks(source, settings, report), source, report), source, report)
    drafts = _of_splits(drafts, options.splits, report)
    if options.documents is not None:
        _ask_the_only_corpus(drafts, options.documents)
    by_answers = options.answer_documents and any(draft.answer_only and not draft.gains for draft in drafts)
    matcher = AnswerMatcher(drafts, options.answer_documents) if by_answers else None
    # Confidential texts lie nowhere but in the result.
    with CorpusWriter(folder / "corpus.parquet", report, None if card.confidential else kept) as corpus:
        if corpus.num_kept:
            progress.say(f"{label}: goes on after {corpus.num_kept:,} documents that the run before kept")
        for name, document, place in _documents(source, settings, options, report):
            doc_id = corpus.add(name, document, place)
            progress.documents += 1
            if matcher is not None:
                matcher.see(name, doc_id, document)
    _check_corpora(drafts, corpus, card, options, source, report)
    if matcher is not None and corpus.counts:
        drafts = _some(matcher.judged(drafts, report), source, report)
    if corpus.counts:
        report.count("documents", corpus.counts.total())
    missing = _missing(drafts, corpus) if corpus.counts else {}
    _check_gold(drafts, missing, card, source, report)
    _assign_splits(drafts, label, options)
    tasks = {split: [_task(draft, label, missing) for draft in drafts if draft.split == split] for split in _SPLITS}
    write_tasks(folder / "tasks.parquet", tasks)
    if card.confidential:
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    manifest = {
        "format": FORMAT_VERSION,
        "dataset": label,
        **_about(card),
        "source": {"kind": source.kind, "revision": source.revision, "files": source.inputs(), **_lent(options)},
        "settings": {
            **settings.model_dump(mode="json"),
            "validation_fraction": options.validation_fraction,
            "test_fraction": options.test_fraction,
            "tasks_only": options.tasks_only,
            "answer_documents": options.answer_documents,
        },
        "counts": _counts(drafts, tasks, corpus.counts, report),
        "published": {
            name: {"published": figure, "here": report.counts[name]}
            for name, figure in card.published.items()
            if name in report.counts
        },
        **report.as_json(),
        "missing_gold": _missing_gold(drafts, label, missing),
        "leakage": find_leakage(folder, options.compare_with),
    }
    return write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Adds the digests of both tables and writes the manifest; a folder without it is not whole."""
    manifest["sha256"] = {name: sha256_of(folder / name) for name in FILES[:2]}
    text = json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")
    return manifest


def _kept(drafts: Iterable[Draft], source: Source, report: Report) -> list[Draft]:
    """The questions that can be scored; all others are dropped under their reason. Raises DataError for a repeated id."""
    kept, seen = [], set()
    for draft in drafts:
        if draft.query_id in seen:
            file, row = source.place
            raise DataError(f"{file}: row {row}: the question id {draft.query_id!r} stands before; make ids unique.")
        seen.add(draft.query_id)
        draft.prompt = draft.prompt.strip()
        _set_document_ids(draft)
        banned = set(draft.excluded).intersection(draft.gains)
        if banned:
            report.merge("gold ids that their question excludes (no gain)", len(banned))
            draft.gains = {doc_id: gain for doc_id, gain in draft.gains.items() if doc_id not in banned}
        if not draft.prompt:
            report.drop(draft.query_id, "empty question")
        elif any(gain > 0 for gain in draft.gains.values()) or (draft.answer_only and draft.answers):
            kept.append(draft)
        else:
            report.drop(draft.query_id, draft.no_gain)
    return kept


def _some(drafts: list[Draft], source: Source, report: Report) -> list[Draft]:
    """Raises DataError where none is left."""
    if not drafts:
        reasons = "; ".join(f"{len(names)} dropped: {reason}" for reason, names in report.dropped.items())
        raise DataError(
            f"{source.where}: no question is left ({reasons or 'there was none'}); is it the whole data set?"
        )
    return drafts


def _documents(
    source: Source, settings: ConverterSettings, options: Options, report: Report
) -> Iterator[tuple[str, Document, tuple[str, int]]]:
    """(corpus, document, (file, row)): the set's own, or those of the prepared folder that stands in for them."""
    if options.documents is not None:
        yield from prepared_documents(options.documents)
    elif not options.tasks_only:
        for name, document in get_converter(settings.name).documents(source, settings, report):
            yield name, document, source.place


def _lent(options: Options) -> dict[str, Any]:
    """Which documents stood in for the set's own."""
    return {} if options.documents is None else {"documents_sha256": sha256_of(options.documents / FILES[1])}


def _ask_the_only_corpus(drafts: list[Draft], documents: Path) -> None:
    """Where the prepared folder has several, the questions' own names choose."""
    names = prepared_corpora(documents)
    for draft in drafts if len(names) == 1 else ():
        draft.corpus = names[0]


def _set_document_ids(draft: Draft) -> None:
    """As the corpus has them, see `ids.document_id`; of two that become one the higher gain counts."""
    gains: dict[str, float] = {}
    for published, gain in draft.gains.items():
        doc_id = document_id(published)
        gains[doc_id] = max(gain, gains.get(doc_id, 0.0))
    draft.gains = gains
    draft.excluded = tuple(map(document_id, draft.excluded))
    draft.judged_zero = tuple(map(document_id, draft.judged_zero))


def _of_splits(drafts: list[Draft], splits: tuple[str, ...], report: Report) -> list[Draft]:
    """Those of the published splits that are wanted; the others are dropped."""
    for draft in drafts:
        if draft.split not in splits:
            report.drop(draft.query_id, f"of the published {draft.split} split, which is left out")
    return [draft for draft in drafts if draft.split in splits]


def _check_corpora(
    drafts: list[Draft], corpus: CorpusWriter, card: Card, options: Options, source: Source, report: Report
) -> None:
    if not corpus.counts:
        if card.ships_documents and not options.tasks_only:
            raise DataError(
                f"{source.where}: {card.title} has no document there; put its corpus beside the questions, name its "
                "file where it has another name and the data set a setting for it (dataset.corpus), or set tasks_only=true."
            )
        report.note("There are no documents: the tasks can be read, but nothing can be searched or trained on.")
        if options.answer_documents:
            report.note(
                "answer_documents judged no question: give documents=FOLDER, a prepared folder that is searched for answers."
            )
        return
    asked = Counter(draft.corpus for draft in drafts if draft.gains or options.answer_documents or options.documents)
    for name, questions in asked.items():
        if corpus.counts[name]:
            continue
        if options.documents is not None:
            raise DataError(
                f"documents={options.documents}: it has no corpus {name!r}, which {questions} questions ask; its corpora are "
                f"{', '.join(sorted(corpus.counts))}."
            )
        raise DataError(
            f"{source.where}: corpus {name!r} has no document, but {questions} questions ask it; is a file of it missing?"
        )
    unjudged = sum(not draft.gains for draft in drafts)
    if unjudged and not options.answer_documents:
        report.note(
            f"{unjudged} tasks have answers alone, so they can be neither trained on nor evaluated; answer_documents=100 judges "
            "them by the documents that hold an answer."
        )


def _missing(drafts: list[Draft], corpus: CorpusWriter) -> dict[str, list[str]]:
    """Judged ids that their corpus lacks, by question: those with a gain stay in the ideal ranking."""
    missing = {}
    for draft in drafts:
        ids = corpus.ids(draft.corpus)
        absent = sorted(doc_id for doc_id in draft.gains if doc_id not in ids)
        if absent:
            missing[draft.query_id] = absent
    return missing


def _check_gold(drafts: list[Draft], missing: dict[str, list[str]], card: Card, source: Source, report: Report) -> None:
    """Notes which relevant documents the corpus lacks; raises DataError where no question has one there: then the ids are of two
    kinds."""
    gold = {draft.query_id: [doc_id for doc_id, gain in draft.gains.items() if gain > 0] for draft in drafts}
    absent = {
        query_id: [doc_id for doc_id in missing.get(query_id, ()) if doc_id in ids] for query_id, ids in gold.items()
    }
    absent = {query_id: ids for query_id, ids in absent.items() if ids}
    judged = sum(bool(ids) for ids in gold.values())
    without = sum(len(ids) == len(gold[query_id]) for query_id, ids in absent.items())
    if judged and without == judged:
        query_id, ids = next(iter(absent.items()))
        raise DataError(
            f"{source.where}: of {judged} questions none has a relevant document in the corpus ({query_id!r} names {ids[0]!r}); "
            "write ids as the corpus has them."
        )
    if absent and card.role == "own":
        shown = ", ".join(f"{query_id!r} names {ids[0]!r}" for query_id, ids in islice(absent.items(), 3))
        report.note(
            f"{len(absent)} tasks name relevant documents that the corpus lacks ({shown}{', ...' if len(absent) > 3 else ''}), which "
            f"no search finds; {without} of them have no other and score 0. Correct the ids if they are mistyped."
        )
    elif without:
        report.note(
            f"{without} tasks have no relevant document in the corpus and score 0 whatever is found; they stay, since published "
            "figures count them."
        )


def _missing_gold(drafts: list[Draft], label: str, missing: dict[str, list[str]]) -> dict[str, list[str]]:
    """By task id, of the `missing` ones those with a gain."""
    gold = {
        f"{label}/{draft.query_id}": [doc_id for doc_id in missing.get(draft.query_id, ()) if draft.gains[doc_id] > 0]
        for draft in drafts
    }
    return {task_id: doc_ids for task_id, doc_ids in gold.items() if doc_ids}


def _assign_splits(drafts: list[Draft], label: str, options: Options) -> None:
    """Holds parts of the training tasks out; none for validation where the publisher already gives such a split."""
    published = any(draft.split == "validation" for draft in drafts)
    validation_fraction = 0.0 if published else options.validation_fraction
    for draft in drafts:
        if draft.split == "train":
            name = f"{label}/{draft.group or draft.query_id}"
            draft.split = held_out_split(name, validation_fraction, options.test_fraction)


def _task(draft: Draft, label: str, missing: dict[str, list[str]]) -> Task:
    metadata = {**draft.metadata, "query_id": draft.query_id}
    if draft.judged_zero:
        metadata["judged_zero"] = list(draft.judged_zero)
    if draft.query_id in missing:
        metadata[MISSING] = missing[draft.query_id]
    return Task(
        task_id=f"{label}/{draft.query_id}",
        prompt=draft.prompt,
        corpus=draft.corpus,
        gains=draft.gains,
        excluded=draft.excluded,
        answers=draft.answers,
        locale=draft.locale,
        dataset=label,
        metadata=metadata,
    )


def _about(card: Card) -> dict[str, Any]:
    about: dict[str, Any] = {"title": card.title, "licence": card.licence, "homepage": card.homepage, "role": card.role}
    if card.confidential:
        about["confidential"] = "Never publish these texts, never train on them."
    return about


def _counts(
    drafts: list[Draft], tasks: dict[str, list[Task]], documents: Counter[str], report: Report
) -> dict[str, Any]:
    return {
        "tasks": {split: len(found) for split, found in tasks.items()},
        "pairs": sum(gain > 0 for draft in drafts for gain in draft.gains.values()),
        "judged_zero": sum(len(draft.judged_zero) for draft in drafts),
        "documents": dict(sorted(documents.items())),
        "dropped": report.num_dropped,
        "read": dict(sorted(report.counts.items())),
    }
