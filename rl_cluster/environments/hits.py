"""Search results as the model sees them, written to an observation and read back from one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FoundDocument:
    """One search result as the model sees it."""

    doc_id: str
    title: str
    snippet: str


def format_documents(found: Iterable[FoundDocument]) -> str:
    """The observation of one search: a line `doc_id | title | snippet` per document."""
    return "\n".join(f"{d.doc_id} | {d.title} | {d.snippet}" for d in found) or "nothing found"


def parse_documents(observation: str) -> list[FoundDocument]:
    """The documents in an observation; lines of another form are skipped."""
    parts = (line.split(" | ", 2) for line in observation.splitlines())
    return [FoundDocument(*(piece.strip() for piece in found)) for found in parts if len(found) == 3]
