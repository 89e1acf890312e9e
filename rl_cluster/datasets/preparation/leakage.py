"""Finds what two sets or splits share: the same question, or a relevant passage of the same text.

Works on prepared folders and reports task ids and counts, never texts: some of them must not be repeated anywhere.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rl_cluster.errors import DataError

_EXAMPLES = 20
_BLANKS = re.compile(r"\s+")


@dataclass
class Fingerprint:
    """One split of one set: hash of question to a task id, hash of relevant passage to a task id."""

    questions: dict[bytes, str] = field(default_factory=dict)
    passages: dict[bytes, str] = field(default_factory=dict)


def find_leakage(folder: Path, others: Iterable[Path] = ()) -> list[dict[str, Any]]:
    """What the splits of a prepared folder share with each other and with those of other folders, where they share anything.

    A split is named `set/split`, and with its folder where another one has that name: own sets often share a label.
    Raises DataError where one of `others` is no prepared folder.
    """
    own = _fingerprints(folder)
    foreign: dict[str, Fingerprint] = {}
    for other in others:
        if not all((other / name).is_file() for name in ("tasks.parquet", "corpus.parquet")):
            raise DataError(
                f"compare_with={other}: it holds no tasks.parquet and corpus.parquet; give a prepared folder."
            )
        for label, mark in _fingerprints(other).items():
            foreign[_free(label, other, own.keys() | foreign.keys())] = mark
    pairs = [*itertools.combinations(sorted(own), 2), *itertools.product(sorted(own), sorted(foreign))]
    known, found = own | foreign, []
    for first, second in pairs:
        questions = _shared(known[first].questions, known[second].questions)
        passages = _shared(known[first].passages, known[second].passages)
        if questions or passages:
            found.append(
                {
                    "between": [first, second],
                    "same_question": len(questions),
                    "same_passage": len(passages),
                    "question_examples": questions[:_EXAMPLES],
                    "passage_examples": passages[:_EXAMPLES],
                }
            )
    return found


def _free(label: str, folder: Path, taken: Collection[str]) -> str:
    """A name that none of `taken` is; that of a folder given twice stays."""
    named = [label, f"{folder.absolute().name}:{label}", f"{folder}:{label}"]
    return next((name for name in named if name not in taken), named[-1])


def normalise(text: str) -> str:
    """Case, punctuation and blanks do not make two questions different; combining marks do."""
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_punctuation())
    return _BLANKS.sub(" ", folded).strip()


@functools.cache
def _punctuation() -> dict[int, str]:
    return {code: " " for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in "PS"}


def _fingerprints(folder: Path) -> dict[str, Fingerprint]:
    """By `set/split`. Texts are read only of row groups that hold a relevant document."""
    prints: dict[str, Fingerprint] = {}
    relevant: dict[str, dict[str, list[tuple[str, str]]]] = {}
    columns = ["task_id", "prompt", "corpus", "gains", "split"]
    for batch in pq.ParquetFile(folder / "tasks.parquet").iter_batches(batch_size=512, columns=columns):
        for row in batch.to_pylist():
            label = f"{row['task_id'].partition('/')[0]}/{row['split']}"
            mark = prints.setdefault(label, Fingerprint())
            mark.questions.setdefault(_hash(normalise(row["prompt"])), row["task_id"])
            for doc_id, gain in json.loads(row["gains"]).items():
                if gain > 0:
                    relevant.setdefault(row["corpus"], {}).setdefault(doc_id, []).append((label, row["task_id"]))
    corpus_file = pq.ParquetFile(folder / "corpus.parquet")
    for group in range(corpus_file.num_row_groups):
        ids = corpus_file.read_row_group(group, columns=["corpus", "doc_id"]).to_pydict()
        hits = [
            i for i, (c, d) in enumerate(zip(ids["corpus"], ids["doc_id"], strict=True)) if d in relevant.get(c, {})
        ]
        if hits:
            texts = corpus_file.read_row_group(group, columns=["text"]).column("text").take(hits).to_pylist()
            for i, text in zip(hits, texts, strict=True):
                passage = _hash(_BLANKS.sub(" ", text).strip().casefold())
                for label, task_id in relevant[ids["corpus"][i]][ids["doc_id"][i]]:
                    prints[label].passages.setdefault(passage, task_id)
    return prints


def _shared(first: dict[bytes, str], second: dict[bytes, str]) -> list[list[str]]:
    return sorted([first[key], second[key]] for key in first.keys() & second.keys())


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
