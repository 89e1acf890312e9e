"""`report.md`: the table of the published study, with what it leaves out: intervals, significance, the parts of a gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.evaluation.comparison import rows
from rl_cluster.evaluation.report.content import FOOTNOTE, ReportContent


def report_markdown(content: ReportContent) -> str:
    """GitHub-flavoured Markdown; names from outside are escaped."""
    parts = [f"# {plain(content.title)}", ""]
    parts += [f"- {plain(name)}: {plain(value)}" for name, value in content.facts.items()]
    if content.alarms:
        parts += ["", "## Alarms", "", *(f"- {plain(alarm)}" for alarm in content.alarms)]
    for pair in content.comparison["pairs"]:
        parts += ["", f"## {plain(pair['name'])}", "", *_published_layout(content, pair), "", *_paired(pair)]
    if content.temperatures:
        parts += ["", "## At other temperatures", "", *_temperatures(content.temperatures)]
    parts += ["", "## Systems", "", *_systems(content.comparison["systems"])]
    parts += _passes(content.comparison["systems"])
    parts += _failures(content.comparison["systems"])
    parts += [line for note in content.comparison["notes"] for line in ("", plain(note))]
    if content.comparison["repeats"]:
        parts += ["", "## Repeats over seeds", "", *_repeats(content.comparison["repeats"])]
    if content.drifts:
        parts += ["", "## Drift", "", *_drifts(content.drifts)]
    parts += ["", FOOTNOTE, ""]
    return "\n".join(parts)


def _published_layout(content: ReportContent, pair: Mapping[str, Any]) -> list[str]:
    before = content.comparison["systems"][pair["before"]]
    after = content.comparison["systems"][pair["after"]]
    lines = ["| Set | Queries | nDCG@10 | Failures | Turns |", "|---|---|---|---|---|"]
    for (name, old), (_, new) in zip(rows(before), rows(after), strict=True):
        lines.append(
            f"| {plain(name)} | {old['n']} | {old['ndcg@10']:.4f}→{new['ndcg@10']:.4f} | "
            f"{100 * old['failure_rate']:.2f}→{100 * new['failure_rate']:.2f} % | {_turns(old)}→{_turns(new)} |"
        )
    return lines


def _paired(pair: Mapping[str, Any]) -> list[str]:
    lines = [
        "| Set | Difference | p | By ranking | By fewer failures | Smallest detectable |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in rows(pair):
        smallest = "-" if part["smallest_detectable"] is None else f"{part['smallest_detectable']:.3f}"
        lines.append(
            f"| {plain(name)} | {with_interval(part['ndcg@10'], part['ci95'], '{:+.3f}')}{_caution(part)} | "
            f"{p_value(part['p_holm'])} | {part['ranking']:+.3f} | {part['failure_avoidance']:+.3f} | {smallest} |"
        )
    return lines


def _temperatures(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| Pair | Temperature | n | nDCG@10 | Difference | p | By ranking | By fewer failures |", "|" + "---|" * 8]
    for pair in pairs:
        lines.append(
            f"| {plain(pair['name'])} | {plain(pair['temperature'])} | {pair['n']} | {pair['before']:.4f}→{pair['after']:.4f} | "
            f"{with_interval(pair['ndcg@10'], pair['ci95'], '{:+.3f}')}{_caution(pair)} | {p_value(pair['p_holm'])} | "
            f"{pair['ranking']:+.3f} | {pair['failure_avoidance']:+.3f} |"
        )
    return lines


def _systems(systems: Mapping[str, Any]) -> list[str]:
    lines = [
        "| System | Set | n | nDCG@10 | Recall@10 | Recall@100 | MRR | Solved | Failures | Lost | Gold found | Found, not handed in "
        "| Searches | Idle searches | Tokens | Latency, median / p95 | Cost |",
        "|" + "---|" * 17,
    ]
    for name, part, each in _parts(systems):
        measures = each["measures"]
        lines.append(
            f"| {plain(name)} | {plain(part)} | {each['n']} | "
            f"{with_interval(each['ndcg@10'], each['ci95'], '{:.3f}')}{_caution(each)} | "
            + " | ".join(mean(measures, key) for key in ("recall@10", "recall@100", "mrr", "success_rate"))
            + f" | {100 * each['failure_rate']:.1f} % | {each['infrastructure']} of {each['episodes']} | "
            + " | ".join(mean(measures, key) for key in ("gold_found", "gold_found_not_handed_in"))
            + f" | {mean(measures, 'searches', '{:.2f}')} | {mean(measures, 'idle_searches')}"
            + f" | {mean(measures, 'sampled_tokens', '{:.0f}')} | {latency(measures)} | {mean(measures, 'cost', '{:.4g}')} |"
        )
    return lines


def _passes(systems: Mapping[str, Any]) -> list[str]:
    """Of the systems that played questions several times."""
    lines = []
    for name, part, each in _parts(systems):
        measures = each["measures"]
        for k in (key.removeprefix("pass_at_") for key in measures if key.startswith("pass_at_")):
            both = (measures[f"{kind}_{k}"] for kind in ("pass_at", "pass_power"))
            shown = " | ".join(with_interval(found["mean"], found["ci95"], "{:.3f}") for found in both)
            lines.append(f"| {plain(name)} | {plain(part)} | {k} | {shown} |")
    return ["", "| Tries of | Set | k | pass@k | pass^k |", "|---|---|---|---|---|", *lines] if lines else []


def _failures(systems: Mapping[str, Any]) -> list[str]:
    lines = [
        f"| {plain(name)} | {plain(part)} | {plain(reason)} | {with_interval(rate['mean'], rate['ci95'], '{:.1%}')} |"
        for name, part, each in _parts(systems)
        for reason, rate in each["measures"]["failure_rates"].items()
    ]
    return ["", "| Failures of | Set | Reason | Share of episodes |", "|---|---|---|---|", *lines] if lines else []


def _parts(systems: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """(system, set or piece, its numbers) in the order to show them."""
    return [(name, part, each) for name, found in systems.items() for part, each in rows(found)]


def _repeats(repeats: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| Recipe | Against | Gain in nDCG@10, for further seeds and questions | By run |", "|---|---|---|---|"]
    for found in repeats:
        runs = ", ".join(f"{plain(run)} {gain:+.3f}" for run, gain in found["by_run"].items())
        gain = with_interval(found["ndcg@10"], found["ci95"], "{:+.3f}")
        lines.append(f"| {plain(found['name'])} | {plain(found['before'])} | {gain} | {runs} |")
    return lines


def _drifts(drifts: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| Drift | System | Change of nDCG@10 | p | Injected failures | What it is |",
        "|---|---|---|---|---|---|",
    ]
    for drift in drifts:
        for system, part in drift["systems"].items():
            lines.append(
                f"| {plain(drift['name'])} | {plain(system)} | {with_interval(part['ndcg@10'], part['ci95'], '{:+.3f}')}"
                f"{_caution(part)} | {p_value(part['p_holm'])} | {part['injected']} | {plain(drift['description'])} |"
            )
        lines += [
            f"| {plain(drift['name'])} | {plain(system)} | does not apply | - | - | {plain(drift['description'])} |"
            for system in drift["does_not_apply"]
        ]
    pairs = [(drift["name"], pair, part) for drift in drifts for pair, part in drift["pairs"].items()]
    if pairs:
        lines += ["", "| Under the drift | Pair | Difference in nDCG@10 | p | By ranking | By fewer failures |"]
        lines.append("|---|---|---|---|---|---|")
    for drift, pair, part in sorted(pairs, key=lambda found: found[1]):
        lines.append(
            f"| {plain(drift)} | {plain(pair)} | {with_interval(part['ndcg@10'], part['ci95'], '{:+.3f}')}{_caution(part)} | "
            f"{p_value(part['p_holm'])} | {part['ranking']:+.3f} | {part['failure_avoidance']:+.3f} |"
        )
    return lines


def plain(text: str) -> str:
    """Text that Markdown neither breaks a table at nor reads as anything else."""
    flat = " ".join(str(text).split())
    for mark in "\\`*_[]<>|#":
        flat = flat.replace(mark, f"\\{mark}" if mark not in "<>" else {"<": "&lt;", ">": "&gt;"}[mark])
    return flat


def with_interval(value: float, interval: Sequence[float] | None, form: str) -> str:
    """A mean and its bounds."""
    if interval is None:
        return form.format(value)
    return f"{form.format(value)} [{form.format(interval[0])}, {form.format(interval[1])}]"


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def mean(measures: Mapping[str, Any], key: str, form: str = "{:.3f}") -> str:
    """One measure's mean, or a dash."""
    return form.format(measures[key]["mean"]) if key in measures else "-"


def latency(measures: Mapping[str, Any]) -> str:
    """Median and 95th percentile in seconds with their bounds, or a dash."""
    found = measures.get("latency_s")
    if found is None:
        return "-"
    return " / ".join(with_interval(found[name], found[f"{name}_ci95"], "{:.2f}") for name in ("median", "p95")) + " s"


def _turns(summary: Mapping[str, Any]) -> str:
    return "-" if summary["turns"] is None else f"{summary['turns']:.1f}"


def _caution(part: Mapping[str, Any]) -> str:
    return f" ({part['caution']})" if part["caution"] else ""
