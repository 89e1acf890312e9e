"""Several systems on the same questions: each by itself, and paired differences with Holm's correction, as JSON types.

Overall and per data set. A pair's p-values are corrected over its data sets, and the overall ones over the pairs; the keys
`p_holm` hold them. Secondary measures get a fifth of the resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl_cluster.errors import DataError
from rl_cluster.evaluation.holm import holm
from rl_cluster.evaluation.measures import MeasureSettings, Prices, measure
from rl_cluster.evaluation.repeats import mean_over_repeats
from rl_cluster.evaluation.summary import EpisodeRecord, compare, question_scores, summarise

SHORT_RANKING = 10
"""The depth of nDCG@10 and recall@10, and the most that an agent may hand in."""
Systems = Mapping[str, Sequence[EpisodeRecord]]


def compare_systems(
    systems: Systems,
    pairs: Sequence[tuple[str, str]],
    settings: MeasureSettings,
    prices: Mapping[str, Prices] | None = None,
    repeats: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """`systems` {name: {overall, datasets}}, `pairs`, a list with one entry per (before, after), `repeats`, and `notes`, sentences
    that readers of the numbers should know.

    repeats: a recipe to the systems that are its runs under several seeds; what they gain over the first of `systems`, with
    an interval for further seeds and questions. Raises DataError where a pair was not evaluated on the same questions, and as `summarise`.
    """
    prices = prices or {}
    result: dict[str, Any] = {"systems": {}, "pairs": [], "repeats": [], "notes": _depth_notes(systems)}
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
    reference = next(iter(systems), "")
    for name, runs in (repeats or {}).items():
        result["repeats"].append(_repeats(name, reference, runs, systems))
    return result


def by_dataset(records: Sequence[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Records by data set, sorted by its name."""
    parts: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        parts.setdefault(record.dataset, []).append(record)
    return dict(sorted(parts.items()))


def _depth_notes(systems: Systems) -> list[str]:
    """Where some system hands in no more documents than nDCG@10 reads: its deeper measures are not those of the others."""
    depths = {name: max((record.handed_in for record in records), default=0) for name, records in systems.items()}
    if not any(0 < depth <= SHORT_RANKING for depth in depths.values()):
        return []
    listed = ", ".join(f"{name} {depth}" for name, depth in depths.items())
    return [
        f"Documents handed in at most: {listed}. Up to {SHORT_RANKING} documents, recall@100 is recall@{SHORT_RANKING} and MRR ends at "
        f"place {SHORT_RANKING}; compare such a system with others by nDCG@10 and recall@10."
    ]


def _system(records: Sequence[EpisodeRecord], settings: MeasureSettings, prices: Prices | None) -> dict[str, Any]:
    summary = summarise(records, resamples=settings.resamples, seed=settings.seed)
    secondary = replace(settings, resamples=max(1000, settings.resamples // 5))
    depth = max(record.handed_in for record in records)
    return {**summary.as_json(), "ranking_depth": depth, "measures": measure(records, secondary, prices)}


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


def _repeats(name: str, reference: str, runs: Sequence[str], systems: Systems) -> dict[str, Any]:
    base = question_scores(systems[reference])
    differences = []
    for run in runs:
        scores = question_scores(systems[run])
        if scores.keys() != base.keys():
            raise DataError(
                f"{run} and {reference} were evaluated on different questions; evaluate both on the same ones."
            )
        differences.append([scores[key] - base[key] for key in base])
    found = mean_over_repeats(differences)
    return {
        "name": name,
        "before": reference,
        "runs": list(runs),
        "ndcg@10": found.mean,
        "ci95": found.interval,
        "n": found.n,
        "by_run": {run: sum(row) / len(row) for run, row in zip(runs, differences, strict=True)},
    }
