"""What a conversion did besides writing rows: everything dropped with its reason, everything merged, counts, notes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """Filled by a converter and by the pipeline; a part of the manifest."""

    dropped: dict[str, list[str]] = field(default_factory=dict)
    merged: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def drop(self, name: str, reason: str) -> None:
        """A question or document that is left out, by its id."""
        self.dropped.setdefault(reason, []).append(name)

    def merge(self, what: str, times: int = 1) -> None:
        """Something that stood more than once and counts once, or was repaired without loss."""
        self.merged[what] += times

    def count(self, what: str, times: int = 1) -> None:
        """Rows of a kind, as they were read; compared with the published figure where there is one."""
        self.counts[what] += times

    def note(self, text: str) -> None:
        """One sentence that a reader of the manifest should know."""
        self.notes.append(text)

    @property
    def num_dropped(self) -> int:
        return sum(map(len, self.dropped.values()))

    def gains(self, doc_ids: list[str], gain: float = 1.0) -> dict[str, float]:
        """Every id of a gold list with one gain; an id that stands twice counts once and is reported."""
        gains = dict.fromkeys(doc_ids, gain)
        if len(gains) < len(doc_ids):
            self.merge("ids listed twice in a gold list", len(doc_ids) - len(gains))
        return gains

    def as_json(self) -> dict[str, Any]:
        return {
            "dropped": {reason: {"count": len(names), "ids": names} for reason, names in sorted(self.dropped.items())},
            "merged": dict(sorted(self.merged.items())),
            "notes": self.notes,
        }
