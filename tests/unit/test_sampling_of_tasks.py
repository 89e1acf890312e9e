"""Some tasks of many."""

from __future__ import annotations

import pytest

from rl_cluster.datasets.sampling import some_tasks
from rl_cluster.datasets.task import Task

TASKS = [
    Task(f"set/{kind}-{number}", "?", "kb", {"d": 1.0}) for kind in ("written", "simulated") for number in range(200)
]


def test_some_tasks_come_from_the_whole_file_in_its_order() -> None:
    chosen = some_tasks(TASKS, 100)
    assert len(chosen) == 100
    assert chosen == [task for task in TASKS if task in chosen]
    assert 30 <= sum("written" in task.task_id for task in chosen) <= 70


def test_some_tasks_do_not_depend_on_the_order_and_grow_with_the_limit() -> None:
    few = {task.task_id for task in some_tasks(TASKS[::-1], 50)}
    assert few == {task.task_id for task in some_tasks(TASKS, 50)}
    assert few < {task.task_id for task in some_tasks(TASKS, 60)}


@pytest.mark.parametrize("limit", [None, 400, 1000])
def test_some_tasks_without_need_are_all(limit: int | None) -> None:
    assert some_tasks(TASKS, limit) == TASKS
