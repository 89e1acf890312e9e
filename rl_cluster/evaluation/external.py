"""The external metric of a run: a measure that is not the reward, so that a reward that is gamed shows.

`evaluation.external_metric` names one of NAMES, or a function of one's own as `package.module:function`, which takes the
task and the trajectory and gives a number, higher being better.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from numbers import Real

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import ConfigError, MetricError, Outcome
from rl_cluster.evaluation.metrics import ndcg_at_k, recall_at_k, reciprocal_rank

ExternalMetric = Callable[[Task, Trajectory], float]


def _of_ranking(measure: Callable[[list[str], dict[str, float]], float | None]) -> ExternalMetric:
    def metric(task: Task, trajectory: Trajectory) -> float:
        if trajectory.outcome is not Outcome.FINISHED:
            return 0.0
        return measure(trajectory.ranking, task.gains) or 0.0

    return metric


NAMES: dict[str, ExternalMetric] = {
    "ndcg@10": _of_ranking(lambda ranking, gains: ndcg_at_k(ranking, gains, 10)),
    "recall@10": _of_ranking(lambda ranking, gains: recall_at_k(ranking, gains, 10)),
    "mrr": _of_ranking(reciprocal_rank),
}


def metric_bounds(name: str) -> tuple[float, float]:
    """The values that a metric can take; nothing is known of a function of one's own."""
    return (0.0, 1.0) if name in NAMES else (-math.inf, math.inf)


def get_external_metric(name: str) -> ExternalMetric:
    """Raises ConfigError where there is no such metric, module or function; a function of one's own is checked at each call."""
    if name in NAMES:
        return NAMES[name]
    module, separator, function = name.partition(":")
    if not separator:
        raise ConfigError(
            f"evaluation.external_metric={name} is unknown; choose one of {', '.join(NAMES)}, or package.module:function."
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"evaluation.external_metric={name} cannot be imported ({error}); give package.module:function."
        ) from error
    if not callable(found):
        raise ConfigError(f"evaluation.external_metric={name} is no function; give package.module:function.")
    return _checked(name, found)


def _checked(name: str, function: Callable[[Task, Trajectory], object]) -> ExternalMetric:
    """Raises MetricError where the function fails or gives no finite number, since that is a mistake in it."""

    def metric(task: Task, trajectory: Trajectory) -> float:
        played = f"an episode of task {task.task_id} that ended with {trajectory.outcome.value}"
        where = f"evaluation.external_metric={name}, for {played},"
        try:
            value = function(task, trajectory)
        except Exception as error:
            raise MetricError(f"{where} raised {type(error).__name__}: {error}; mend the function.") from error
        if not isinstance(value, Real) or not math.isfinite(value):
            raise MetricError(f"{where} gave {value!r}; return a finite number.")
        return float(value)

    return metric
