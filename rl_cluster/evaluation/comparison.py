"""Several systems on the same questions: each by itself, and paired differences with Holm's correction, as JSON types.

Overall, per data set, and per piece of a data set that has several corpora (FreshStack's topics, MLQA's languages), whose names
begin with that of the data set and a slash. A pair's p-values are corrected over its data sets, those of the pieces over the
pieces of their data set, and the overall ones over the pairs; the keys `p_holm` hold them. Secondary measures get a fifth of the
resamples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl_cluster.errors import DataError
from rl_cluster.evaluation.holm import holm
from rl_cluster.evaluation.measures import MeasureSettings, Prices, measure
from rl_cluster.evaluation.power import smallest_detectable_effect
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
    """`systems` {name: {overall, datasets, pieces}}, `pairs`, a list with one entry per (before, after), `repeats`, and `notes`,
    sentences that readers of the numbers should know.

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
            "pieces": {piece: _system(part, settings, prices.get(name)) for piece, part in by_piece(records).items()},
        }
    for before, after in pairs:
        result["pairs"].append(_pair(before, after, systems, settings))
    correct_by_holm({str(place): pair["overall"] for place, pair in enumerate(result["pairs"])})
    result["notes"] += [note for pair in result["pairs"] if (note := _lost_note(pair))]
    reference = next(iter(systems), "")
    for name, runs in (repeats or {}).items():
        result["repeats"].append(_repeats(name, reference, runs, systems))
    return result


def by_dataset(records: Sequence[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Records by data set, sorted by its name; those of its pieces together."""
    return _grouped(records, lambda record: dataset_of(record.dataset))


def by_piece(records: Sequence[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Records by piece, sorted by its name, of the data sets that have several."""
    pieces = _grouped(records, lambda record: record.dataset)
    number = Counter(map(dataset_of, pieces))
    return {piece: part for piece, part in pieces.items() if number[dataset_of(piece)] > 1}


def dataset_of(piece: str) -> str:
    """The data set that a piece is of; a data set of one corpus is its own only piece."""
    return piece.partition("/")[0]


def rows(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Of a system or a pair in the order to show them: each data set, its pieces beneath it, then `all` of several.

    An only data set has what `all` would have, whose p-value is corrected over the pairs.
    """
    datasets, shown = found["datasets"], []
    for dataset, part in datasets.items():
        shown.append((dataset, part if len(datasets) > 1 else found["overall"]))
        shown += [(piece, each) for piece, each in found["pieces"].items() if dataset_of(piece) == dataset]
    return shown if len(datasets) == 1 else [*shown, ("all", found["overall"])]


def _grouped(records: Sequence[EpisodeRecord], name: Callable[[EpisodeRecord], str]) -> dict[str, list[EpisodeRecord]]:
    parts: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        parts.setdefault(name(record), []).append(record)
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


def _lost_note(pair: Mapping[str, Any]) -> str:
    """Where infrastructure failed episodes of a pair, so that a part of the difference is nobody's policy."""
    before, after = pair["overall"]["lost_before"], pair["overall"]["lost_after"]
    if not before and not after:
        return ""
    return (
        f"{pair['name']}: {pair['before']} lost {before} and {pair['after']} {after} episodes to infrastructure, which score 0 and count as "
        "a difference by failures, though in no failure rate; play them again before the difference is believed."
    )


def _system(records: Sequence[EpisodeRecord], settings: MeasureSettings, prices: Prices | None) -> dict[str, Any]:
    summary = summarise(records, resamples=settings.resamples, seed=settings.seed)
    secondary = replace(settings, resamples=max(1000, settings.resamples // 5))
    depth = max(record.handed_in for record in records)
    return {**summary.as_json(), "ranking_depth": depth, "measures": measure(records, secondary, prices)}


def _pair(before: str, after: str, systems: Systems, settings: MeasureSettings) -> dict[str, Any]:
    def compared(
        old: Mapping[str, Sequence[EpisodeRecord]], new: Mapping[str, Sequence[EpisodeRecord]]
    ) -> dict[str, dict[str, Any]]:
        return {name: compare(old[name], new[name], settings.resamples, settings.seed).as_json() for name in old}

    whole = compare(systems[before], systems[after], settings.resamples, settings.seed).as_json()
    datasets = compared(by_dataset(systems[before]), by_dataset(systems[after]))
    pieces = compared(by_piece(systems[before]), by_piece(systems[after]))
    correct_by_holm(datasets)
    for dataset in datasets:
        correct_by_holm({piece: part for piece, part in pieces.items() if dataset_of(piece) == dataset})
    return {
        "name": f"{after} - {before}",
        "before": before,
        "after": after,
        "overall": whole,
        "datasets": datasets,
        "pieces": pieces,
    }


def correct_by_holm(parts: Mapping[str, dict[str, Any]]) -> None:
    """Sets `p_holm` of each from the `p` of all, `comparisons`, their number, and what each can detect at the level that this leaves."""
    corrected = holm({name: part["p"] for name, part in parts.items()})
    for name, part in parts.items():
        part["p_holm"], part["comparisons"] = corrected[name], len(parts)
        part["smallest_detectable"] = smallest_detectable_effect(part["difference_sd"], part["n"], len(parts))


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
