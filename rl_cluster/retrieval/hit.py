"""One search result, as it travels from an index through the service to whoever asked; imports nothing."""

from __future__ import annotations

from typing import NamedTuple


class Hit(NamedTuple):
    """`title` and `snippet` are one line each, without control characters, of limited length. `score` is comparable within one
    answer only; `part` is where the snippet stands in the document.

    A tuple, since ten of them are made and packed for each search: a frozen dataclass takes three times as long.
    """

    doc_id: str
    title: str
    snippet: str
    score: float
    part: int = 1
