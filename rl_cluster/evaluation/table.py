"""Evaluation results for the terminal: the systems, and what one gained over another. Fits 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from rl_cluster.evaluation.comparison import rows
from rl_cluster.evaluation.statistics import FEW_QUESTIONS, MeanInterval
from rl_cluster.evaluation.summary import PairedSummary, SystemSummary


def result_table(systems: Mapping[str, SystemSummary], pairs: Mapping[str, PairedSummary] | None = None) -> Group:
    """A rich renderable: one row per system, where an episode failed the shares of each reason, then one row per pair (named by the
    caller, as "trained - untrained").

    Brackets are 95% intervals; `finished` is nDCG@10 over finished episodes alone; `lost` counts the episodes that the
    infrastructure failed, of a pair before and after; they score 0.
    """
    parts = [_systems(systems)]
    if any(summary.failures for summary in systems.values()):
        parts.append(_reasons({name: (summary.failures, summary.episodes) for name, summary in systems.items()}))
    if pairs:
        parts.append(_pairs(pairs))
    return Group(*parts)


def comparison_table(comparison: Mapping[str, Any]) -> Group:
    """The same of `comparison.compare_systems`: one row per system and data set, then one per pair and data set."""
    systems = _table("nDCG@10 by system (brackets: 95% interval)")
    for name in ("system", "set", "nDCG@10", "recall@100", "failures", "lost", "turns", "n"):
        systems.add_column(name, justify="left" if name in ("system", "set") else "right")
    for name, found in comparison["systems"].items():
        for dataset, each in rows(found):
            systems.add_row(
                escape(name),
                escape(dataset),
                _bounds(each, "{:.3f}"),
                f"{each['measures']['recall@100']['mean']:.3f}",
                f"{each['failure_rate']:.0%}",
                str(each["infrastructure"]),
                "-" if each["turns"] is None else f"{each['turns']:.1f}",
                str(each["n"]),
            )
    pairs = _table("Paired differences (same questions; p by Holm)")
    for name in ("pair", "set", "nDCG@10", "p", "by ranking", "by fewer failures", "lost", "n"):
        pairs.add_column(name, justify="left" if name in ("pair", "set") else "right")
    for pair in comparison["pairs"]:
        for dataset, part in rows(pair):
            pairs.add_row(
                escape(pair["name"]),
                escape(dataset),
                _bounds(part, "{:+.3f}"),
                _p(part["p_holm"]),
                f"{part['ranking']:+.3f}",
                f"{part['failure_avoidance']:+.3f}",
                f"{part['lost_before']}, {part['lost_after']}",
                str(part["n"]),
            )
    whole = {name: found["overall"] for name, found in comparison["systems"].items()}
    failures = {name: (found["failures"], found["episodes"]) for name, found in whole.items()}
    parts = [systems, *([_reasons(failures)] if any(counts for counts, _ in failures.values()) else [])]
    return Group(*parts, pairs) if comparison["pairs"] else Group(*parts)


def drift_table(drifts: Sequence[Mapping[str, Any]]) -> Table:
    """Each drift of a report against the undisturbed run, a row per system."""
    table = _table("Changed worlds against the undisturbed one (same questions; p by Holm)")
    for name in ("drift", "system", "change of nDCG@10", "p", "injected", "n"):
        table.add_column(name, justify="left" if name in ("drift", "system") else "right")
    for drift in drifts:
        for system, part in drift["systems"].items():
            numbers = (_bounds(part, "{:+.3f}"), _p(part["p_holm"]), str(part["injected"]), str(part["n"]))
            table.add_row(escape(drift["name"]), escape(system), *numbers)
        for system in drift["does_not_apply"]:
            table.add_row(escape(drift["name"]), escape(system), "does not apply", "-", "-", "-")
    return table


def _bounds(part: Mapping[str, Any], form: str) -> str:
    value, interval = part["ndcg@10"], part["ci95"]
    bounds = "n<2" if interval is None else f"{form.format(interval[0])}, {form.format(interval[1])}"
    if interval is not None and part["n"] < FEW_QUESTIONS:
        bounds += f"; n<{FEW_QUESTIONS}"
    return f"{form.format(value)} \\[{bounds}]"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _systems(systems: Mapping[str, SystemSummary]) -> Table:
    table = _table("nDCG@10 by system (brackets: 95% interval)")
    table.add_column("system", min_width=12, overflow="fold")
    for name in ("nDCG@10", "finished", "failures", "lost", "turns", "search", "tokens", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, summary in systems.items():
        table.add_row(
            name,
            _with_interval(summary.ndcg, "{:.3f}"),
            _plain(summary.ndcg_finished, "{:.3f}"),
            _with_interval(summary.failure_rate, "{:.0%}"),
            str(sum(summary.infrastructure.values())),
            _plain(summary.turns, "{:.1f}"),
            _plain(summary.searches, "{:.1f}"),
            _plain(summary.tokens, "{:.0f}"),
            str(summary.n),
        )
    return table


def _reasons(failures: Mapping[str, tuple[Mapping[str, int], int]]) -> Table:
    """`failures`: by system, how often the policy failed by each reason, and the number of episodes."""
    table = _table("Failed episodes by reason")
    table.min_width = 26  # as wide as its title
    table.add_column("system", min_width=12, overflow="fold")
    reasons = sorted({reason for counts, _ in failures.values() for reason in counts})
    for reason in reasons:
        table.add_column(reason.replace("_", " "), justify="right")
    for name, (counts, episodes) in failures.items():
        table.add_row(escape(name), *(f"{counts.get(reason, 0) / episodes:.1%}" for reason in reasons))
    return table


def _pairs(pairs: Mapping[str, PairedSummary]) -> Table:
    table = _table("Paired differences (same questions)")
    table.add_column("pair", min_width=12, overflow="fold")
    for name in ("nDCG@10", "p", "by ranking", "by fewer failures", "lost", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, pair in pairs.items():
        table.add_row(
            name,
            _with_interval(pair.ndcg, "{:+.3f}"),
            _p(pair.ndcg.p),
            f"{pair.ranking.mean:+.3f}",
            f"{pair.failure_avoidance.mean:+.3f}",
            f"{pair.lost_before}, {pair.lost_after}",
            str(pair.n),
        )
    return table


def _table(title: str) -> Table:
    # Rules between columns would cost the names a third of their width.
    return Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )


def _plain(mean: MeanInterval | None, form: str) -> str:
    return "-" if mean is None else form.format(mean.mean)


def _with_interval(mean: MeanInterval, form: str) -> str:
    bounds = "n<2" if mean.low is None or mean.high is None else f"{form.format(mean.low)}, {form.format(mean.high)}"
    if mean.caution and mean.low is not None:
        bounds += f"; n<{FEW_QUESTIONS}"
    # The backslash keeps rich from reading the bracket as markup.
    return f"{form.format(mean.mean)} \\[{bounds}]"
