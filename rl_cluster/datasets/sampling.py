"""Some tasks of many, the same ones in every command."""

from __future__ import annotations

from collections.abc import Sequence

from rl_cluster.datasets.preparation.splits import position
from rl_cluster.datasets.task import Task


def some_tasks(tasks: Sequence[Task], limit: int | None) -> list[Task]:
    """At most `limit` tasks (None: all), in their order, chosen by a hash of their ids: the first of a file are often of one kind."""
    if limit is None or limit >= len(tasks):
        return list(tasks)
    ranked = sorted(range(len(tasks)), key=lambda place: position(f"limit/{tasks[place].task_id}"))
    return [tasks[place] for place in sorted(ranked[:limit])]
