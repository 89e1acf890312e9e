"""`AlarmStage`: warns when a run learns something else than it should. An alarm is a reason to look, not an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.event_log import EventLog
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.alarms import entropy_alarm, flat_metric_alarm, step_alarms, step_metrics
from rl_cluster.tracking.report import RunReport
from rl_cluster.tracking.run_tracker import RunTracker


class AlarmStage:
    """Looks at each step's groups and at each validation."""

    def __init__(self, external_metric: str, report: RunReport, tracker: RunTracker, events: EventLog) -> None:
        self.external_metric = external_metric
        self.report = report
        self.tracker = tracker
        self.events = events

    def after_step(
        self, groups: Mapping[str, Sequence[Trajectory]], step: int, entropies: Sequence[float] = ()
    ) -> dict[str, float]:
        """The measures that the alarms are made of, for the tracker. `entropies`: see `entropy_alarm`."""
        metrics = step_metrics(groups)
        collapsed = entropy_alarm(entropies)
        self._raise([*step_alarms(metrics), *([collapsed] if collapsed else [])], step)
        return metrics

    def after_validation(self, history: Sequence[Mapping[str, float]], step: int) -> None:
        """Compares the rewards so far with the external metric."""
        rewards = [(entry["step"], entry["rollout/reward/mean"]) for entry in history]
        alarm = flat_metric_alarm(rewards, self.report.validations, self.external_metric)
        self._raise([alarm] if alarm else [], step)

    def _raise(self, alarms: list[str], step: int) -> None:
        self.report.add_alarms(step, alarms)
        for alarm in alarms:
            self.tracker.count("alarms/raised")
            self.events.say(f"alarm: {alarm}")
