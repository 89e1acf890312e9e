"""`RunTracker`: what a run tells MLflow; does nothing when tracking is switched off."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from rl_cluster.config import Config, tracking_uri
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.tracking.mlflow_tracker import Tracker

Status = Literal["FINISHED", "FAILED", "KILLED"]

KILLED_DEADLINE_S = 8.0
"""A run that is stopped has less time than one that ends."""
_RUN = "mlflow_run.json"


class RunTracker:
    """Metrics by step, traces of episodes, and the report. A run that is resumed goes on in the MLflow run that it began."""

    def __init__(self, config: Config, output: Path, resumed: bool = False) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self.tracker: Tracker | None = None
        self.decode: Callable[[list[int]], str] | None = None
        if config.tracking.enabled:
            output.mkdir(parents=True, exist_ok=True)
            (output / "config.json").write_text(config.model_dump_json(indent=1))
            uri, note = tracking_uri(config), output / _RUN
            begun = json.loads(note.read_text()) if resumed and note.exists() else {}
            self.tracker = Tracker(
                uri,
                config.tracking.experiment,
                config.run_name,
                config.model_dump(mode="json"),
                resume=begun.get("run_id"),
            )
            note.write_text(json.dumps({"run_id": self.tracker.run_id}))
            self.tracker.log_artifact(str(output / "config.json"))

    def count(self, name: str) -> None:
        """Counts an event; the totals go out with the next metrics."""
        self.counts[name] += 1

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if self.tracker is not None:
            self.tracker.log_metrics({**metrics, **{name: float(n) for name, n in self.counts.items()}}, step)

    def log_traces(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """At most `tracking.traces_per_step`, failures first; the rest is counted. `decode`, once it is set, writes the prompts."""
        if self.tracker is not None and self.config.tracking.traces_per_step:
            limit = self.config.tracking.traces_per_step
            left = self.tracker.log_traces(list(trajectories), step, limit, self.decode)
            self.counts["tracking/traces_not_written"] += left

    def log_report(self, paths: Sequence[Path]) -> None:
        """The files of the report, as artifacts."""
        if self.tracker is not None:
            for path in paths:
                self.tracker.log_artifact(path)

    def finish(self, status: Status) -> str:
        """Marks the run FINISHED, FAILED or KILLED; returns a sentence on what MLflow did not take, empty where it took all."""
        if self.tracker is None:
            return ""
        self.tracker.finish(status, KILLED_DEADLINE_S if status == "KILLED" else None)
        return self.tracker.losses
