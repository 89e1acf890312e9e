"""The numbers of an evaluation under flat names, for a tracker: the paths at which `report.json` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flat_numbers(comparison: Mapping[str, Any], drifts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`eval/SYSTEM/SET/...`, `paired/AFTER_against_BEFORE/SET/...`, `repeats/RECIPE/...` and `drift/DRIFT/SYSTEM/...`,
    `drift/DRIFT/AFTER_against_BEFORE/...`.

    SET is a data set, a piece of one, or `all`. The bounds of an interval end in `/low` and `/high`. What is no number is left out.
    """
    flat: dict[str, float] = {}
    for name, system in comparison["systems"].items():
        for dataset, part in _sets(system):
            flat |= _numbers(part, f"eval/{name}/{dataset}")
    for pair in comparison["pairs"]:
        name = f"paired/{pair['after']}_against_{pair['before']}"
        for dataset, part in _sets(pair):
            flat |= _numbers(part, f"{name}/{dataset}")
    for found in comparison["repeats"]:
        flat |= _numbers(found, f"repeats/{found['name']}")
    for drift in drifts:
        for name, part in drift["systems"].items():
            flat |= _numbers(part, f"drift/{drift['name']}/{name}")
        for pair, part in drift["pairs"].items():
            flat |= _numbers(part, f"drift/{drift['name']}/{pair.replace(' - ', '_against_')}")
    return flat


def _sets(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [*found["datasets"].items(), *found["pieces"].items(), ("all", found["overall"])]


def _numbers(value: Any, name: str) -> dict[str, float]:
    if isinstance(value, int | float):
        return {name: float(value)}
    parts: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        parts = value
    elif isinstance(value, Sequence) and name.endswith("ci95"):
        parts = dict(zip(("low", "high"), value, strict=True))
    return {key: number for part in parts for key, number in _numbers(parts[part], f"{name}/{part}").items()}
