"""What a person sees of a running job: one line a step, tables at the evaluations, and where to look further."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape

from rl_cluster.config import Config, tracking_uri

EVERY_STEP_UP_TO = 30
"""Supervised steps of a stage of which each has a line."""


class Terminal:
    """Shows the coordinator's events. Lines, not a live display: job logs are followed as text."""

    def __init__(self, console: Console, config: Config) -> None:
        self.console = console
        self.config = config
        self.started = time.time()
        self.header_shown = False
        self.last_validation: float | None = None
        self.recent: deque[float] = deque(maxlen=5)

    def show(self, event: dict[str, Any]) -> None:
        """Prints one event."""
        kind = event["kind"]
        if kind == "message":
            self._print(event, escape(event["text"]))
        elif kind == "progress":
            self._print(event, f"[dim]{event['done']}/{event['of']} questions[/]")
        elif kind == "supervised":
            self._supervised(event)
        elif kind == "step":
            self._step(event)
        elif kind == "validation":
            metrics = event["metrics"]
            self.last_validation = metrics["val/ndcg@10"]
            self._print(
                event,
                f"[cyan]validation[/] step {event['step']}: nDCG@10 {metrics['val/ndcg@10']:.3f}, failures "
                f"{metrics['val/failure_rate']:.1%} ({metrics['val/reward/num_prompts']:.0f} questions)",
            )
        elif kind == "evaluation":
            summary = event["summary"]
            interval = summary["ci95"]
            shown = f" \\[{interval[0]:.3f}, {interval[1]:.3f}]" if interval else " (too few questions for an interval)"
            label = "greedy" if event["temperature"] == 0 else f"temperature {event['temperature']:g}"
            self._print(
                event,
                f"[cyan]test, {event['name']}[/], {label}: nDCG@10 {summary['ndcg@10']:.3f}{shown}, "
                f"failures {summary['failure_rate']:.1%} ({event['seconds']:.0f} s)",
            )

    def _supervised(self, event: dict[str, Any]) -> None:
        of = f"/{event['of']}" if event["of"] else ""
        few = event["of"] is not None and event["of"] <= EVERY_STEP_UP_TO
        if few or event["step"] == 1 or event["step"] % 5 == 0 or event["step"] == event["of"]:
            self._print(event, f"{event['stage']} step {event['step']}{of}: loss {event['loss']:.3f}")

    def _step(self, event: dict[str, Any]) -> None:
        m = event["metrics"]
        if not self.header_shown:
            self.header_shown = True
            self._print(
                event,
                "[bold]  step    reward  failures  turns  age  no signal   clip  worker idle  learner idle  seconds  RL left[/]",
            )
        self.recent.append(m["timing_s/step"])
        left_s = sum(self.recent) / len(self.recent) * (event["of"] - event["step"])
        self._print(
            event,
            f"{event['step']:>4}/{event['of']:<4} {m['rollout/reward/mean']:>6.3f} {m['rollout/failure_rate']:>9.1%} "
            f"{m['rollout/turns/mean']:>6.1f} {m['staleness/age_max']:>4.0f} "
            f"{m['analysis/zero_adv_groups']:>6.0f}/{m['training/num_groups']:<3.0f} {m['learner/clip_fraction']:>6.1%} "
            f"{m['system/worker_idle']:>12.0%} {m['system/learner_idle']:>13.0%} {m['timing_s/step']:>8.1f} "
            f"{left_s / 60:>5.0f}min",
        )

    def _print(self, event: dict[str, Any], text: str) -> None:
        elapsed = int(event["time"] - self.started)
        self.console.print(f"[dim]{elapsed // 60:3d}:{elapsed % 60:02d}[/] {text}", highlight=False, soft_wrap=True)

    def finish(self, table: RenderableType, output: Path, best: Mapping[str, float]) -> None:
        """The final tables and where to look further. `best`: `step` and `ndcg@10` of the model in the folder `best`, where there is one."""
        self.console.rule("result")
        self.console.print(table)
        self.console.print(f"model      {output / 'final'}", soft_wrap=True, highlight=False)
        if best:
            last = f", the last validation {self.last_validation:.3f}" if self.last_validation is not None else ""
            self.console.print(
                f"best       {output / 'best'}   (validation nDCG@10 {best['ndcg@10']:.3f} at step {best['step']:.0f}{last})",
                soft_wrap=True,
                highlight=False,
            )
        self.console.print(f"report     {output / 'report.html'}", soft_wrap=True, highlight=False)
        if self.config.tracking.enabled:
            self.console.print(f"charts     make ui   ({tracking_uri(self.config)})", soft_wrap=True, highlight=False)
