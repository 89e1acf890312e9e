"""`RunTracker`: what a run tells MLflow; does nothing when tracking is switched off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rl_cluster.config import Config, tracking_uri
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.tracking.mlflow_tracker import Tracker

Status = Literal["FINISHED", "FAILED", "KILLED"]


class RunTracker:
    """Metrics by step, traces of episodes, and the report."""

    def __init__(self, config: Config, output: Path) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self.tracker: Tracker | None = None
        if config.tracking.enabled:
            output.mkdir(parents=True, exist_ok=True)
            (output / "config.json").write_text(config.model_dump_json(indent=1))
            self.tracker = Tracker(
                tracking_uri(config), config.tracking.experiment, config.run_name, config.model_dump(mode="json")
            )
            self.tracker.log_artifact(str(output / "config.json"))

    def count(self, name: str) -> None:
        """Counts an event; the totals go out with the next metrics."""
        self.counts[name] += 1

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if self.tracker is not None:
            self.tracker.log_metrics({**metrics, **{name: float(n) for name, n in self.counts.items()}}, step)

    def log_traces(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """At most `tracking.traces_per_step`, failures first; the rest is counted."""
        if self.tracker is not None and self.config.tracking.traces_per_step:
            left = self.tracker.log_traces(list(trajectories), step, self.config.tracking.traces_per_step)
            self.counts["tracking/traces_not_written"] += left

    def log_report(self, paths: Sequence[Path]) -> None:
        """The files of the report, as artifacts."""
        if self.tracker is not None:
            for path in paths:
                self.tracker.log_artifact(path)

    def finish(self, status: Status) -> None:
        """Marks the run FINISHED, FAILED or KILLED."""
        if self.tracker is not None:
            self.tracker.finish(status)
