"""Several systems on the same questions: each by itself, and paired differences with Holm's correction, as JSON types.

Overall and per data set. A pair's p-values are corrected over its data sets, and the overall ones over the pairs; the keys
`p_holm` hold them. Secondary measures get a fifth of the resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl_cluster.evaluation.holm import holm
from rl_cluster.evaluation.measures import MeasureSettings, Prices, measure
from rl_cluster.evaluation.summary import EpisodeRecord, compare, summarise

Systems = Mapping[str, Sequence[EpisodeRecord]]


def compare_systems(
    systems: Systems,
    pairs: Sequence[tuple[str, str]],
    settings: MeasureSettings,
    prices: Mapping[str, Prices] | None = None,
) -> dict[str, Any]:
    """`systems` {name: {overall, datasets}} and `pairs`, a list with one entry per (before, after).

    Raises DataError where a pair was not evaluated on the same questions, and as `summarise`.
    """
    prices = prices or {}
    result: dict[str, Any] = {"systems": {}, "pairs": []}
    for name, records in systems.items():
        result["systems"][name] = {
            "overall": _system(records, settings, prices.get(name)),
            "datasets": {
                dataset: _system(part, settings, prices.get(name)) for dataset, part in by_dataset(records).items()
            },
        }
    for before, after in pairs:
        result["pairs"].append(_pair(before, after, systems, settings))
    corrected = holm({str(place): pair["overall"]["p"] for place, pair in enumerate(result["pairs"])})
    for place, pair in enumerate(result["pairs"]):
        pair["overall"]["p_holm"] = corrected[str(place)]
    return result


def by_dataset(records: Sequence[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Records by data set, sorted by its name."""
    parts: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        parts.setdefault(record.dataset, []).append(record)
    return dict(sorted(parts.items()))


def _system(records: Sequence[EpisodeRecord], settings: MeasureSettings, prices: Prices | None) -> dict[str, Any]:
    summary = summarise(records, resamples=settings.resamples, seed=settings.seed)
    secondary = replace(settings, resamples=max(1000, settings.resamples // 5))
    return {**summary.as_json(), "measures": measure(records, secondary, prices)}


def _pair(before: str, after: str, systems: Systems, settings: MeasureSettings) -> dict[str, Any]:
    old, new = by_dataset(systems[before]), by_dataset(systems[after])
    whole = compare(systems[before], systems[after], settings.resamples, settings.seed).as_json()
    parts = {
        dataset: compare(old[dataset], new[dataset], settings.resamples, settings.seed).as_json() for dataset in old
    }
    corrected = holm({dataset: part["p"] for dataset, part in parts.items()})
    for dataset, part in parts.items():
        part["p_holm"] = corrected[dataset]
    return {"name": f"{after} - {before}", "before": before, "after": after, "overall": whole, "datasets": parts}
