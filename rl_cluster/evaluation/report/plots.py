"""The plots of a report as SVG texts; each function returns "" where there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.evaluation.comparison import rows
from rl_cluster.evaluation.report.canvas import (
    COLOURS,
    FAINT,
    GRID,
    INK,
    WIDTH,
    Canvas,
    Scale,
    number,
    shortened,
    told_apart,
)
from rl_cluster.evaluation.report.markdown import with_interval
from rl_cluster.evaluation.statistics import student_quantile

_LEFT, _RIGHT = 46, 12
_GROUP_VARIANCE = "analysis/reward_variance_across_groups"


def reward_half_widths(history: Sequence[Mapping[str, float]]) -> list[float] | None:
    """By step, half the width of the 95% interval of its mean reward: Student's, of the means of its groups.

    A group is one question, whose episodes are alike. None where some step does not say how far its groups lie apart, or has one
    alone.
    """
    halves = []
    for entry in history:
        variance, groups = entry.get(_GROUP_VARIANCE), int(entry.get("training/num_groups", 0))
        if variance is None or groups < 2:
            return None
        # The variance has ddof 0, so the squared standard error of the mean is it over one group less.
        halves.append(student_quantile(0.975, groups - 1) * math.sqrt(variance / (groups - 1)))
    return halves


def learning_curve(
    history: Sequence[Mapping[str, float]], validations: Sequence[Mapping[str, float]], metric: str = "nDCG@10"
) -> str:
    """Reward by step, with a band where `reward_half_widths` knows one, and the external metric with its intervals."""
    played = [entry for entry in history if "rollout/reward/mean" in entry]
    band = reward_half_widths(played)
    rewards = [
        (entry["step"], entry["rollout/reward/mean"], half)
        for entry, half in zip(played, band or [0.0] * len(played), strict=True)
    ]
    points = [v for v in validations if math.isfinite(v.get("mean", math.nan))]
    if len(rewards) < 2 and len(points) < 2:
        return ""
    canvas = Canvas(240, f"Learning curve: training reward and validation {metric} by step")
    values = [y + sign * half for _, y, half in rewards for sign in (-1, 1)]
    values += [v[key] for v in points for key in ("mean", "low", "high") if v.get(key) is not None]
    steps = [float(step) for step, _, _ in rewards] + [float(v["step"]) for v in points]
    across = Scale(min(steps), max(max(steps), min(steps) + 1), _LEFT, WIDTH - _RIGHT)
    up = Scale.around(values, 200, 30)
    _axes(canvas, across, up, "training step", 200)
    if rewards:
        places = [across(step) for step, _, _ in rewards]
        if band is not None:
            upper = [(x, up(y + half)) for x, (_, y, half) in zip(places, rewards, strict=True)]
            lower = [(x, up(y - half)) for x, (_, y, half) in zip(places, rewards, strict=True)]
            canvas.band(upper, lower, COLOURS[0])
        canvas.polyline([(x, up(y)) for x, (_, y, _) in zip(places, rewards, strict=True)], COLOURS[0])
    for v in points:
        x = across(v["step"])
        if v.get("low") is not None:
            canvas.line(x, up(v["low"]), x, up(v["high"]), COLOURS[1], 1.5)
        canvas.circle(x, up(v["mean"]), 4, COLOURS[1], f"step {v['step']:g}: {v['mean']:.3f}")
    if len(points) > 1:
        canvas.polyline([(across(v["step"]), up(v["mean"])) for v in points], COLOURS[1], 1.2)
    _legend(canvas, ["training reward", f"validation {metric}"], 14)
    return canvas.svg()


def forest(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Paired differences in nDCG@10 per data set, its pieces beneath it, and overall, with 95% intervals."""
    drawn: list[tuple[str, str, Mapping[str, Any] | None]] = []
    for pair in pairs:
        found = rows(pair)
        labels = told_apart([f"· {name.partition('/')[2]}" if "/" in name else name for name, _ in found], 17)
        drawn.append((pair["name"], shortened(pair["name"], 60), None))
        drawn += [(name, label, part) for (name, part), label in zip(found, labels, strict=True)]
    if not drawn:
        return ""
    height = 24 * len(drawn) + 52
    canvas = Canvas(height, "Paired differences in nDCG@10 by data set, with 95% intervals")
    shown = [part for _, _, part in drawn if part is not None]
    values = [value for part in shown for value in [part["ndcg@10"], *(part["ci95"] or [])]]
    across = Scale.around(values, 128, WIDTH - 112, zero=True)
    bottom = height - 34
    for tick in across.ticks(4):
        canvas.line(across(tick), 8, across(tick), bottom, GRID)
        canvas.text(across(tick), bottom + 14, number(tick), "middle", 11, FAINT)
    canvas.line(across(0.0), 8, across(0.0), bottom, INK, 1.0, "3 3")
    canvas.text((128 + WIDTH - 112) / 2, height - 4, "difference in nDCG@10", "middle", 11, FAINT)
    for place, (name, label, part) in enumerate(drawn):
        y, strong = 24 * place + 22, "/" not in name
        if part is None:
            canvas.text(0, y + 4, label, bold=True)
            continue
        canvas.text(8, y + 4, label, bold=strong)
        interval = part["ci95"]
        colour = _direction(interval)
        if interval is not None:
            canvas.line(across(interval[0]), y, across(interval[1]), y, colour, 2.0)
        canvas.circle(across(part["ndcg@10"]), y, 5 if strong else 3.5, colour, f"{name}: {part['ndcg@10']:+.3f}")
        p = part["p_holm"]
        canvas.text(WIDTH - 98, y + 4, f"{part['ndcg@10']:+.3f}", size=11)
        canvas.text(WIDTH, y + 4, "p<0.001" if p < 0.001 else f"p={p:.3f}", "end", 11, FAINT)
    return canvas.svg()


def failure_reasons(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """Share of episodes that each reason ended, by system; infrastructure in grey."""
    reasons = sorted({reason for found in systems.values() for reason in found["overall"]["failures"]})
    ended = {}
    for name, found in systems.items():
        episodes = found["overall"]["episodes"]
        shares = {reason: found["overall"]["failures"].get(reason, 0) / episodes for reason in reasons}
        ended[name] = (shares, found["overall"]["infrastructure"] / episodes)
    top = max((sum(shares.values()) + lost for shares, lost in ended.values()), default=0.0)
    if top == 0.0:
        return ""
    canvas = Canvas(30 * len(ended) + 66 + 16 * ((len(reasons) + 2) // 3), "Failed episodes by reason and system")
    across = Scale(0.0, top * 1.05, 128, WIDTH - 50)
    head = 10 + 16 * ((len(reasons) + 3) // 3)
    bottom = head + 30 * len(ended)
    for tick in across.ticks(4):
        canvas.line(across(tick), head, across(tick), bottom, GRID)
        canvas.text(across(tick), bottom + 14, f"{100 * tick:g}%", "middle", 11, FAINT)
    labels = told_apart(list(ended), 18)
    for place, (name, (shares, lost)) in enumerate(ended.items()):
        y, x = head + 30 * place + 6, 128.0
        canvas.text(0, y + 13, labels[place])
        for reason, colour in zip([*reasons, "infrastructure"], [*COLOURS[: len(reasons)], "#9aa5b1"], strict=True):
            share = lost if reason == "infrastructure" else shares[reason]
            width = across(share) - across(0.0)
            interval = systems[name]["overall"]["measures"]["failure_rates"].get(reason, {}).get("ci95")
            canvas.rect(x, y, width, 18, colour, f"{name}, {reason}: {with_interval(share, interval, '{:.1%}')}")
            x += width
        canvas.text(x + 6, y + 13, f"{sum(shares.values()) + lost:.1%}", size=11)
    _legend(canvas, [*reasons, "infrastructure"], 14, [*COLOURS[: len(reasons)], "#9aa5b1"])
    return canvas.svg()


def effort(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """Turns, searches and sampled tokens per episode, with 95% intervals."""
    panels = [("turns", "turns"), ("searches", "searches"), ("tokens", "sampled tokens")]
    panels = [(key, label) for key, label in panels if any(found["overall"][key] for found in systems.values())]
    if not panels:
        return ""
    block = 22 * len(systems) + 44
    canvas = Canvas(block * len(panels), "Turns, searches and sampled tokens per episode by system")
    for panel, (key, label) in enumerate(panels):
        top = block * panel
        canvas.text(0, top + 13, f"{label} per episode", bold=True)
        found = {name: system["overall"] for name, system in systems.items() if system["overall"][key] is not None}
        values = [v for each in found.values() for v in [each[key], *(each[f"{key}_ci95"] or [])]]
        across = Scale.around(values, 128, WIDTH - 50, zero=True)
        bottom = top + 20 + 22 * len(systems)
        for tick in across.ticks(4):
            canvas.line(across(tick), top + 20, across(tick), bottom, GRID)
            canvas.text(across(tick), bottom + 13, number(tick), "middle", 11, FAINT)
        labels = told_apart(list(found), 17)
        for place, each in enumerate(found.values()):
            y, colour = top + 31 + 22 * place, COLOURS[place % len(COLOURS)]
            canvas.text(8, y + 4, labels[place])
            if each[f"{key}_ci95"]:
                low, high = each[f"{key}_ci95"]
                canvas.line(across(low), y, across(high), y, colour, 2)
            canvas.circle(across(each[key]), y, 4.5, colour)
            canvas.text(WIDTH, y + 4, f"{each[key]:.1f}", "end", 11)
    return canvas.svg()


def quality_against_cost(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """nDCG@10 against cost, or against tokens per question where fewer than two systems have prices.

    Systems without a price are named below instead of drawn among those that have one.
    """
    costs = {name: found["overall"]["measures"].get("cost") for name, found in systems.items()}
    unpriced = [name for name, cost in costs.items() if cost is None]
    priced = len(systems) - len(unpriced) >= 2
    points = []
    for name, found in systems.items():
        measures = found["overall"]["measures"]
        if not priced:
            x = sum(measures.get(key, {}).get("mean", 0.0) for key in ("prompt_tokens", "sampled_tokens"))
        elif costs[name] is not None:
            x = 1000 * costs[name]["mean"]
        else:
            continue
        points.append((name, x, found["overall"]))
    if len(points) < 2 or len({x for _, x, _ in points}) < 2:
        return ""
    label = "cost per 1,000 questions" if priced else "tokens read and written per question"
    left_out = ", ".join(unpriced) if priced else ""
    canvas = Canvas(268 if left_out else 250, f"nDCG@10 against {label}")
    if left_out:
        canvas.text(0, 264, shortened(f"without a price, so not drawn: {left_out}", 72), size=11, colour=FAINT)
    across = Scale.around([x for _, x, _ in points], _LEFT, WIDTH - _RIGHT - 20, zero=True)
    values = [v for _, _, each in points for v in [each["ndcg@10"], *(each["ci95"] or [])]]
    up = Scale.around(values, 210, 14)
    _axes(canvas, across, up, label, 210)
    for place, (name, x, each) in enumerate(points):
        colour = COLOURS[place % len(COLOURS)]
        if each["ci95"]:
            canvas.line(across(x), up(each["ci95"][0]), across(x), up(each["ci95"][1]), colour, 1.5)
        canvas.circle(across(x), up(each["ndcg@10"]), 5, colour, f"{name}: {each['ndcg@10']:.3f} at {x:.4g}")
        right = across(x) > WIDTH * 0.6
        canvas.text(
            across(x) + (-9 if right else 9),
            up(each["ndcg@10"]) + 4,
            shortened(name, 22),
            "end" if right else "start",
            11,
        )
    return canvas.svg()


def drifts(entries: Sequence[Mapping[str, Any]]) -> str:
    """What each drift changed against the undisturbed run, one block per system."""
    systems = list(dict.fromkeys(name for entry in entries for name in entry["systems"]))
    pairs = []
    for system in systems:
        found = {entry["name"]: entry["systems"][system] for entry in entries if system in entry["systems"]}
        if found:
            pairs.append({"name": system, "datasets": found})
    if not pairs:
        return ""
    lines = sum(len(pair["datasets"]) + 1 for pair in pairs)
    canvas = Canvas(22 * lines + 50, "Change of nDCG@10 under each drift, with 95% intervals")
    parts = [part for pair in pairs for part in pair["datasets"].values()]
    across = Scale.around([v for p in parts for v in [p["ndcg@10"], *(p["ci95"] or [])]], 160, WIDTH - 50, zero=True)
    bottom = 22 * lines + 14
    for tick in across.ticks(4):
        canvas.line(across(tick), 8, across(tick), bottom, GRID)
        canvas.text(across(tick), bottom + 14, number(tick), "middle", 11, FAINT)
    canvas.line(across(0.0), 8, across(0.0), bottom, INK, 1.0, "3 3")
    canvas.text((160 + WIDTH - 50) / 2, bottom + 30, "change of nDCG@10", "middle", 11, FAINT)
    y = 20
    for pair in pairs:
        canvas.text(0, y + 4, shortened(pair["name"], 50), bold=True)
        y += 22
        labels = told_apart(list(pair["datasets"]), 22)
        for label, part in zip(labels, pair["datasets"].values(), strict=True):
            colour = _direction(part["ci95"])
            canvas.text(8, y + 4, label)
            if part["ci95"] is not None:
                canvas.line(across(part["ci95"][0]), y, across(part["ci95"][1]), y, colour, 2)
            canvas.circle(across(part["ndcg@10"]), y, 4, colour)
            canvas.text(WIDTH, y + 4, f"{part['ndcg@10']:+.3f}", "end", 11)
            y += 22
    return canvas.svg()


def _direction(interval: Sequence[float] | None) -> str:
    if interval is None or interval[0] <= 0.0 <= interval[1]:
        return FAINT
    return COLOURS[2] if interval[0] > 0 else COLOURS[1]


def _axes(canvas: Canvas, across: Scale, up: Scale, label: str, bottom: float) -> None:
    for tick in up.ticks(6):
        canvas.line(across.start, up(tick), across.end, up(tick), GRID)
        canvas.text(across.start - 6, up(tick) + 4, number(tick), "end", 11, FAINT)
    for tick in across.ticks(6):
        canvas.text(across(tick), bottom + 16, number(tick), "middle", 11, FAINT)
    canvas.line(across.start, bottom, across.end, bottom, FAINT)
    canvas.text((across.start + across.end) / 2, bottom + 33, label, "middle", 11, FAINT)


def _legend(canvas: Canvas, names: Sequence[str], y: float, colours: Sequence[str] = COLOURS) -> None:
    for place, name in enumerate(names):
        x = 4 + (place % 3) * (WIDTH / 3)
        row = y + 16 * (place // 3)
        canvas.rect(x, row - 9, 10, 10, colours[place % len(colours)])
        canvas.text(x + 15, row, shortened(name, 21), size=11)
