"""`Task`: one question with its relevant documents, and `Document`: one text that can be found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_GAIN = 1e9
"""Sums of gains stay exact enough far beyond any scale of judgements."""


@dataclass(frozen=True)
class Document:
    """One document of a corpus. `doc_id` is unique in its corpus; `locale` is that of its text, empty where it is not known."""

    doc_id: str
    title: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    locale: str = ""


@dataclass(frozen=True)
class Task:
    """One question of a data set.

    `gains` maps document ids to gains from 0 to MAX_GAIN (linear, as nDCG uses them); `excluded` lists ids that must never be shown.
    """

    task_id: str
    prompt: str
    corpus: str
    gains: dict[str, float]
    excluded: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    locale: str = "en"
    dataset: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


def is_gain(value: Any) -> bool:
    """Whether a value is a number from 0 to MAX_GAIN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_GAIN


def digest_of(tasks: Iterable[Task]) -> str:
    """SHA-256 of all that tasks say, in their order, as hexadecimal digits."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps(vars(task), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
