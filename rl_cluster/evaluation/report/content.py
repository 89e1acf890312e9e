"""What a report shows, as plain data: comparisons, curves, drifts, alarms, and episodes turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.metrics import ndcg_at_k

MAX_TEXT = 4000
"""Characters of one text in the browser of episodes; what is cut says so."""
MAX_QUESTIONS = 120
FOOTNOTE = (
    "Brackets are 95% intervals over questions, by bootstrap, by Wilson for rates of failures and quantiles of latency, or by Clopper and "
    "Pearson where all questions have one value; failed episodes count 0 and stay in every mean, also those that are lost, which "
    "infrastructure failed and no failure rate has. p is that of a paired randomisation test with Holm's correction: over the data sets "
    "of a pair, over the pieces of a data set, for all questions over the pairs of a temperature, and over the drifts of a system or pair. The smallest "
    "detectable difference is what that test finds in 4 of 5 cases at the level 0.05 divided by the number of comparisons that p is "
    "corrected over."
)


Views = dict[tuple[str, str], dict[str, Any]]
"""(data set, task id) to one episode as the browser shows it."""


@dataclass
class ReportContent:
    """`comparison` is that of `comparison.compare_systems`; its first pair is what the report is about.

    history: metrics by training step, each with `step`; validations: `step`, `mean`, `low`, `high` of the external metric.
    questions: see `question_views`. drifts: one entry per drift with `name`, `description`, the paired difference to the
    undisturbed run by system in `systems`, each with the number of failures that were `injected`, that of each pair of systems
    under it in `pairs`, and in `does_not_apply` the systems that cannot meet it. temperatures: paired differences at other temperatures
    than that of `comparison`, each with `name`, `temperature` in words, `p_holm`, and the mean nDCG@10 of both sides in `before` and `after`.
    """

    title: str
    comparison: dict[str, Any]
    facts: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    validations: list[dict[str, float]] = field(default_factory=list)
    questions: list[dict[str, Any]] = field(default_factory=list)
    drifts: list[dict[str, Any]] = field(default_factory=list)
    temperatures: list[dict[str, Any]] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    external_metric: str = "nDCG@10"

    @property
    def pair(self) -> dict[str, Any] | None:
        """The first pair, if there is any."""
        return self.comparison["pairs"][0] if self.comparison["pairs"] else None


def question_views(
    tasks: Sequence[Task],
    episodes: Mapping[str, Views],
    pair: tuple[str, str] | None,
    limit: int = MAX_QUESTIONS,
) -> list[dict[str, Any]]:
    """Questions with the first episode of each system, those first that `pair` (before, after) changed most.

    JSON types; texts are cut to MAX_TEXT characters.
    """
    views = []
    for task in tasks:
        key = (task.dataset, task.task_id)
        played = {system: found[key] for system, found in episodes.items() if key in found}
        if not played:
            continue
        gold = sorted((d for d, gain in task.gains.items() if gain > 0), key=lambda d: -task.gains[d])[:50]
        change = None
        if pair is not None and pair[0] in played and pair[1] in played:
            change = played[pair[1]]["ndcg"] - played[pair[0]]["ndcg"]
        views.append(
            {
                "dataset": task.dataset,
                "task_id": task.task_id,
                "question": _cut(task.prompt),
                "gold": gold,
                "gains": [task.gains[d] for d in gold],
                "change": change,
                "episodes": played,
            }
        )
    views.sort(key=lambda view: (-abs(view["change"] or 0.0), view["dataset"], view["task_id"]))
    return views[:limit]


def first_views(tasks: Sequence[Task], trajectories: Sequence[Trajectory]) -> Views:
    """The first episode of each question; `tasks` and `trajectories` in one order."""
    found: Views = {}
    for task, trajectory in zip(tasks, trajectories, strict=True):
        key = (task.dataset, task.task_id)
        if key not in found:
            found[key] = _episode(trajectory, task)
    return found


def _episode(trajectory: Trajectory, task: Task) -> dict[str, Any]:
    score = ndcg_at_k(trajectory.ranking, task.gains, 10) or 0.0
    return {
        "outcome": trajectory.outcome.value,
        "ndcg": score,
        "error": _cut(trajectory.error),
        "ranking": [_cut(doc_id, 200) for doc_id in trajectory.ranking[:10]],
        "turns": [
            {
                "text": _cut(turn.text),
                "calls": [
                    {"name": call.name, "arguments": _cut(str(call.arguments), 500), "error": _cut(call.error or "")}
                    for call in turn.tool_calls
                ],
                "observation": _cut("\n".join(turn.observations)),
                "tokens": len(turn.sampled_ids),
            }
            for turn in trajectory.turns
        ],
    }


def _cut(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"
