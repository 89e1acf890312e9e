"""`EvaluationStage`: validation and test under the newest weights, and what is told about them.

Invariants: an evaluation begins only after every worker has acknowledged the newest weights, which ends the run where one
neither does nor is replaced; a validation that lost episodes to infrastructure is said and compared with nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from actors.evaluator import play_once
from actors.event_log import EventLog
from actors.remote import CALL_TIMEOUT_S, Handle, ask
from actors.rollout_pool import RolloutPool
from actors.run_parts import episode_limits
from rl_cluster.config import Config
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.logprobs import logprob_metrics, sampled_logprobs
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import WeightSyncError
from rl_cluster.evaluation.external import get_external_metric
from rl_cluster.evaluation.report import first_views
from rl_cluster.evaluation.summary import EpisodeRecord, summarise
from rl_cluster.tracking.report import RunReport
from rl_cluster.tracking.run_tracker import RunTracker


class EvaluationStage:
    """Plays each question once; keeps the records in the report and the numbers in the tracker."""

    def __init__(
        self,
        config: Config,
        pool: RolloutPool,
        sync: Handle,
        report: RunReport,
        tracker: RunTracker,
        events: EventLog,
    ) -> None:
        self.config = config
        self.pool = pool
        self.sync = sync
        self.report = report
        self.tracker = tracker
        self.events = events
        self.external = get_external_metric(config.evaluation.external_metric)

    async def validate(self, tasks: Sequence[Task], sequence: int, step: int) -> dict[str, Any] | None:
        """`ndcg@10`, its interval `ci95` and the number `n` of `tasks`; None when episodes were lost and the number means nothing."""
        started = time.monotonic()
        self.events.say(f"validating on {len(tasks)} questions")
        records, trajectories = await self._play(tasks, self.config.evaluation.validation_temperature, sequence)
        summary = summarise(records, resamples=1000, seed=step).as_json()
        metrics = self.report.metrics(records, summary, "val")
        metrics |= logprob_metrics(sampled_logprobs(trajectories), "val")
        metrics["timing_s/eval"] = time.monotonic() - started
        if not metrics["val/infrastructure"]:
            values = [self.external(task, played) for task, played in zip(tasks, trajectories, strict=True)]
            self.report.add_validation(step, values)
            metrics[f"val/external/{self.config.evaluation.external_metric}"] = sum(values) / len(values)
        self.tracker.log_metrics(metrics, step)
        if metrics["val/infrastructure"]:
            lost = f"{metrics['val/infrastructure']:.0f} of {len(tasks)} validation episodes"
            self.events.say(f"{lost} were lost to infrastructure: not compared")
            return None
        self.events.emit("validation", step=step, metrics=metrics)
        return {name: summary[name] for name in ("ndcg@10", "ci95", "n")}

    async def test(self, name: str, tasks: Sequence[Task], sequence: int, completed_steps: int, step: int) -> None:
        """Evaluates as `name` for `step`, unless that was done for this step before the run was interrupted."""
        self.report.tasks = list(tasks)
        if self.report.restore(name, step):
            self.events.say(f"evaluation {name!r} is kept from before")
            return
        if name == "before" and completed_steps:
            self.events.say(
                "the start was not evaluated before the run was interrupted; there will be no comparison with it"
            )
            return
        temperatures = self.config.evaluation.temperatures
        at = " and ".join(
            "greedy" if temperature == 0 else f"at temperature {temperature:g}" for temperature in temperatures
        )
        self.events.say(f"evaluating {name!r} on {len(tasks)} test questions, {at}")
        for temperature in temperatures:
            started = time.monotonic()
            records, trajectories = await self._play(tasks, temperature, sequence)
            summary = self.report.add(name, temperature, records, step, first_views(tasks, trajectories))
            prefixes = [f"eval/{name}/t{temperature:g}"]
            if name != "control" and temperature == temperatures[-1]:
                prefixes.append("eval")  # start and end of the run itself, as one chart
            seconds = time.monotonic() - started
            metrics = {"timing_s/eval": seconds}
            for prefix in prefixes:
                metrics |= self.report.metrics(records, summary, prefix)
                metrics |= logprob_metrics(sampled_logprobs(trajectories), prefix)
            self.tracker.log_metrics(metrics, completed_steps)
            self.tracker.log_traces(trajectories, completed_steps)
            self.events.emit("evaluation", name=name, temperature=temperature, summary=summary, seconds=seconds)

    async def _play(
        self, tasks: Sequence[Task], temperature: float, sequence: int
    ) -> tuple[list[EpisodeRecord], list[Trajectory]]:
        # One that fails to load is replaced, and its successor has the time to start.
        deadline_s = self.config.weight_sync.timeout_s + self.config.rollout.start_timeout_s
        waiting = self.sync.wait_acknowledged.remote(sequence, deadline_s)
        behind = await ask("The weight sync", waiting, deadline_s + CALL_TIMEOUT_S)
        if behind:
            raise WeightSyncError(
                f"{', '.join(behind)} did not load the newest weights within weight_sync.timeout_s + rollout.start_timeout_s = "
                f"{deadline_s:.0f} s, and an evaluation by others would say nothing of them; raise weight_sync.timeout_s for a slow machine."
            )
        limits = episode_limits(self.config, temperature)
        total = len(tasks)
        return await play_once(self.pool, tasks, limits, lambda done: self.events.emit("progress", done=done, of=total))
