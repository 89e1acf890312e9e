"""Holm's correction (1979): several p-values, and what each is worth when all of them were looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rl_cluster.errors import DataError


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values under the same names; the chance of any false finding is at most the level they are held to.

    Raises DataError for a p-value outside [0, 1].
    """
    for name, p in p_values.items():
        if not (math.isfinite(p) and 0.0 <= p <= 1.0):
            raise DataError(f"The p-value of {name} is {p}; it lies in [0, 1].")
    adjusted: dict[str, float] = {}
    highest = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: (p_values[name], name))):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[name]))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}
