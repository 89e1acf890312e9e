"""`RunReport`: the evaluations of a run, what they say about each other, and the files that show them.

Evaluations are kept on disk as soon as they are made, with the step they belong to, so that a resumed run does not make
them again and a crash loses none. Invariant: what is kept belongs to this run, not to one before it in the same folder, nor to
steps that a crash has undone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group

from rl_cluster.config import Config, bound_settings
from rl_cluster.datasets.task import Task
from rl_cluster.evaluation.comparison import compare_systems, correct_by_holm
from rl_cluster.evaluation.external import metric_bounds
from rl_cluster.evaluation.files import write_whole
from rl_cluster.evaluation.measures import MeasureSettings
from rl_cluster.evaluation.report import ReportContent, Views, question_views, write_report
from rl_cluster.evaluation.statistics import bootstrap_mean_ci
from rl_cluster.evaluation.summary import EpisodeRecord, SystemSummary, compare, summarise
from rl_cluster.evaluation.table import result_table
from rl_cluster.tracking.evaluation_metrics import reward_metrics

_VALIDATIONS, _ALARMS = "validations.json", "alarms.json"
PAIRS = {"paired": ("before", "after"), "paired_control": ("control", "after")}


def temperature_label(temperature: float) -> str:
    """As people read it: greedy, or T=1."""
    return "greedy" if temperature == 0 else f"T={temperature:g}"


class RunReport:
    """Collects `before`, `after` and `control`, each at the configured temperatures; the last one is the serving one."""

    def __init__(self, config: Config, output: Path, resumed_step: int | None) -> None:
        """`resumed_step`: where the run is resumed, None where it begins. Removes what was kept for later steps, or at all."""
        self.config = config
        self.output = output
        self.records: dict[tuple[str, float], list[EpisodeRecord]] = {}
        self.tasks: list[Task] = []
        self.views: dict[str, Views] = {}
        self.extra: dict[str, Any] = {}
        settings = json.dumps(bound_settings(config.model_dump(mode="json")), sort_keys=True)
        self.context = {"settings": hashlib.sha256(settings.encode()).hexdigest()[:16]}
        last = -1 if resumed_step is None else resumed_step
        kept = self._kept(_VALIDATIONS, self._validation_context())
        self.validations: list[dict[str, float]] = [entry for entry in kept if entry["step"] <= last]
        self._alarms: list[tuple[int, str]] = [
            (step, alarm) for step, alarm in self._kept(_ALARMS, self.context) if step <= last
        ]
        for path in (output / "evaluations").glob("*_t*.json"):
            if json.loads(path.read_text())["step"] > last:
                path.unlink()

    @property
    def serving_temperature(self) -> float:
        return self.config.evaluation.temperatures[-1]

    def add(
        self, name: str, temperature: float, records: list[EpisodeRecord], step: int, views: Views | None = None
    ) -> dict[str, Any]:
        """Keeps one evaluation, and its episodes where it is at the serving temperature; returns its summary as JSON."""
        self.records[name, temperature] = records
        shown = []
        if views is not None and temperature == self.serving_temperature:
            self.views[name] = views
            shown = [[*key, view] for key, view in views.items()]
        kept = {"step": step, "records": msgspec.to_builtins(records), "views": shown, **self.context}
        write_whole(self._path(name, temperature), json.dumps(kept))
        return self.summary(name, temperature).as_json()

    def restore(self, name: str, step: int) -> bool:
        """Reads the evaluation `name` back when it was made at that step, in the same context and, where `tasks` is set, on these;
        False otherwise."""
        found: dict[float, list[EpisodeRecord]] = {}
        views: Views = {}
        for temperature in self.config.evaluation.temperatures:
            path = self._path(name, temperature)
            if not path.exists():
                return False
            kept = json.loads(path.read_text())
            if kept["step"] != step or any(kept.get(key) != value for key, value in self.context.items()):
                return False
            found[temperature] = [msgspec.convert(record, EpisodeRecord) for record in kept["records"]]
            asked = {task.task_id for task in self.tasks}
            if asked and {record.task_id for record in found[temperature]} != asked:
                return False
            views.update({(dataset, task_id): view for dataset, task_id, view in kept.get("views", [])})
        for temperature, records in found.items():
            self.records[name, temperature] = records
        self.views[name] = views
        return True

    def add_validation(self, step: int, values: list[float]) -> None:
        """Keeps the external metric of one validation, one value per question; a step that is validated again replaces it."""
        bounds = metric_bounds(self.config.evaluation.external_metric)
        found = bootstrap_mean_ci([[value] for value in values], resamples=1000, seed=step, bounds=bounds)
        entry: dict[str, Any] = {"step": step, "mean": found.mean, "low": found.low, "high": found.high}
        self.validations = [*(kept for kept in self.validations if kept["step"] < step), entry]
        self._keep(_VALIDATIONS, self.validations, self._validation_context())

    def add_alarms(self, step: int, alarms: list[str]) -> None:
        """Keeps what was raised at a step."""
        self._alarms += [(step, alarm) for alarm in alarms]
        self._keep(_ALARMS, self._alarms, self.context)

    @property
    def alarms(self) -> list[str]:
        """All alarms in the order of their steps, each with its step."""
        return [f"step {step}: {alarm}" for step, alarm in self._alarms]

    def summary(self, name: str, temperature: float) -> SystemSummary:
        resamples = self.config.evaluation.bootstrap_resamples
        return summarise(self.records[name, temperature], resamples=resamples, seed=self.config.seed)

    def metrics(self, records: list[EpisodeRecord], summary: Mapping[str, Any], prefix: str) -> dict[str, float]:
        """The numbers of one evaluation as the tracker names them, and nDCG@10. `summary`: as `SystemSummary.as_json`."""
        return {
            f"{prefix}/infrastructure": float(sum(record.outcome.is_infrastructure_failure for record in records)),
            **reward_metrics(records, prefix, self.config.evaluation.success_threshold),
            f"{prefix}/ndcg@10": summary["ndcg@10"],
            f"{prefix}/failure_rate": summary["failure_rate"],
        }

    def finish(self, ledger: dict[str, Any], history: list[dict[str, float]], rl_seconds: float) -> list[Path]:
        """Adds the run's account and writes the report's files; returns their paths."""
        self.extra = {
            "ledger": ledger,
            "rl_seconds": rl_seconds,
            "steps": len(history),
            "max_age": max((entry["staleness/age_max"] for entry in history), default=0.0),
            "history": history,
            "validations": self.validations,
            "external_metric": self.config.evaluation.external_metric,
            "alarms": self.alarms,
            "written_at": time.time(),
        }
        content = self._content(history)
        self.extra["evaluation"] = content.comparison
        return write_report(self.output, content, self.as_json())

    def _content(self, history: list[dict[str, float]]) -> ReportContent:
        config = self.config
        at = self.serving_temperature
        systems = {name: records for (name, temperature), records in self.records.items() if temperature == at}
        pairs = [pair for pair in PAIRS.values() if pair[0] in systems and pair[1] in systems]
        numbers = config.evaluation
        settings = MeasureSettings(numbers.success_threshold, (1,), numbers.bootstrap_resamples, config.seed)
        return ReportContent(
            title=config.run_name,
            comparison=compare_systems(systems, pairs, settings),
            facts={
                "model": config.model.name,
                "loss": config.algorithm.loss.name,
                "advantage": config.algorithm.advantage.name,
                "steps": str(len(history)),
                "temperature": f"{at:g}",
            },
            history=history,
            validations=self.validations,
            questions=question_views(self.tasks, self.views, pairs[0] if pairs else None),
            temperatures=self._other_temperatures(),
            alarms=self.alarms,
            external_metric=config.evaluation.external_metric,
        )

    def _other_temperatures(self) -> list[dict[str, Any]]:
        found = []
        for temperature in self.config.evaluation.temperatures[:-1]:
            names = {name for name, at in self.records if at == temperature}
            means = {name: self.summary(name, temperature).ndcg.mean for name in names}
            pairs = {
                f"{second} - {first}": {
                    **self._compare(first, second, temperature).as_json(),
                    "name": f"{second} - {first}",
                    "temperature": temperature_label(temperature),
                    "before": means[first],
                    "after": means[second],
                }
                for first, second in PAIRS.values()
                if first in names and second in names
            }
            correct_by_holm(pairs)
            found += pairs.values()
        return found

    def as_json(self) -> dict[str, Any]:
        """Keys `before`, `after`, `control` (serving temperature), `paired`, `paired_control`, and `greedy` for both."""
        report: dict[str, Any] = {"run_name": self.config.run_name, "serving_temperature": self.serving_temperature}
        report.update(self._at(self.serving_temperature))
        for temperature in self.config.evaluation.temperatures[:-1]:
            report["greedy" if temperature == 0 else f"temperature_{temperature:g}"] = self._at(temperature)
        report.update(self.extra)
        return report

    def _at(self, temperature: float) -> dict[str, Any]:
        names = [name for name, at in self.records if at == temperature]
        result: dict[str, Any] = {name: self.summary(name, temperature).as_json() for name in names}
        for pair, (first, second) in PAIRS.items():
            if first in names and second in names:
                result[pair] = self._compare(first, second, temperature).as_json()
        return result

    def _compare(self, first: str, second: str, temperature: float):
        before, after = self.records[first, temperature], self.records[second, temperature]
        return compare(before, after, resamples=self.config.evaluation.bootstrap_resamples, seed=self.config.seed)

    def table(self) -> Group:
        """All systems and pairs for a terminal."""
        systems, pairs = {}, {}
        for temperature in self.config.evaluation.temperatures:
            label = temperature_label(temperature)
            names = [name for name, at in self.records if at == temperature]
            for name in names:
                systems[f"{name}, {label}"] = self.summary(name, temperature)
            for first, second in PAIRS.values():
                if first in names and second in names:
                    pairs[f"{second} - {first}, {label}"] = self._compare(first, second, temperature)
        return result_table(systems, pairs)

    def _validation_context(self) -> dict[str, str]:
        return {**self.context, "external_metric": self.config.evaluation.external_metric}

    def _keep(self, name: str, entries: list[Any], context: dict[str, str]) -> None:
        write_whole(self.output / "evaluations" / name, json.dumps({"entries": entries, **context}))

    def _kept(self, name: str, context: dict[str, str]) -> list[Any]:
        """What this run kept before it was interrupted, if that was in the same context."""
        path = self.output / "evaluations" / name
        kept = json.loads(path.read_text()) if path.exists() else {}
        return kept.get("entries", []) if all(kept.get(key) == value for key, value in context.items()) else []

    def _path(self, name: str, temperature: float) -> Path:
        return self.output / "evaluations" / f"{name}_t{temperature:g}.json"
