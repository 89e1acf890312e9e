"""Whose time it was: a second in which several episodes are under way is a second of the system, not one of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def busy_shares(spans: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds of each (start, end), where a moment in which m of them are open counts 1/m for each of these.

    They sum up to the time in which any is open.
    """
    changes: Counter[float] = Counter(start for start, _ in spans)
    changes.subtract(end for _, end in spans)
    shared: dict[float, float] = {}
    seconds, under_way, last = 0.0, 0, 0.0
    for moment in sorted(changes):
        seconds += (moment - last) / under_way if under_way else 0.0
        shared[moment] = seconds
        under_way, last = under_way + changes[moment], moment
    return [shared[end] - shared[start] for start, end in spans]
