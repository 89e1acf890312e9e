"""The curriculum: what it prefers, that it forgets nothing, and that it goes on exactly where it stood."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from rl_cluster.errors import CheckpointError
from rl_cluster.scheduling.curriculum import Curriculum, CurriculumSettings
from rl_cluster.scheduling.ledger import TaskLedger
from rl_cluster.scheduling.task_queue import TaskQueue

TASKS = ["always", "never", "often", "seldom", "unknown"]


def trained(seed: int = 0) -> Curriculum:
    curriculum = Curriculum(seed)
    for task_id, scores in {
        "always": [1, 1],
        "never": [0, None],
        "often": [1, 1, 1, 0],
        "seldom": [1, 0, 0, 0],
    }.items():
        curriculum.observe(task_id, scores)
    return curriculum


def test_weight_solved_sometimes_and_harder_comes_first() -> None:
    weights = {task_id: trained().weight(task_id) for task_id in TASKS}
    assert sorted(weights, key=weights.__getitem__, reverse=True)[:3] == ["seldom", "unknown", "often"]
    assert weights["always"] == weights["never"] == CurriculumSettings().floor


def test_weight_same_middling_score_every_time_teaches_nothing() -> None:
    curriculum = Curriculum(0)
    curriculum.observe("stuck", [0.43] * 4)
    curriculum.observe("mixed", [0.2, 0.9, 0.4, 0.1])
    assert curriculum.weight("stuck") == pytest.approx(CurriculumSettings().floor)
    assert CurriculumSettings().floor < curriculum.weight("mixed") < curriculum.weight("unknown")


def test_weight_scores_of_another_scale_are_judged_alike() -> None:
    ours, theirs, below = Curriculum(0), Curriculum(0), Curriculum(0)
    for task_id, scores in {
        "often": [1, 1, 0.9, 0.1],
        "seldom": [1, 0.2, 0, 0],
        "stuck": [0.5, 0.5],
        "never": [None, 0],
    }.items():
        ours.observe(task_id, scores)
        theirs.observe(task_id, [None if score is None else 10 * score for score in scores])
        below.observe(task_id, [None if score is None else score - 1 for score in scores])
    for task_id in ("often", "seldom", "stuck", "never", "unknown"):
        assert theirs.weight(task_id) == pytest.approx(ours.weight(task_id))
        assert below.weight(task_id) == pytest.approx(ours.weight(task_id))
    restored = Curriculum(0)
    restored.load_state_dict(json.loads(json.dumps(theirs.state_dict())))
    assert restored.weight("seldom") == theirs.weight("seldom")


def test_choose_frequency_follows_weight_and_reaches_every_task() -> None:
    curriculum = trained()
    counts = Counter(curriculum.choose(TASKS, 1)[0] for _ in range(4000))
    total = sum(curriculum.weight(task_id) for task_id in TASKS)
    for task_id in TASKS:
        assert counts[task_id] / 4000 == pytest.approx(curriculum.weight(task_id) / total, abs=0.03)
    assert counts["never"] > 0


def test_choose_more_than_there_are_gives_each_once_whatever_their_order() -> None:
    assert sorted(trained().choose(TASKS, 99)) == TASKS
    assert trained().choose(TASKS, 3) == trained().choose(TASKS[::-1], 3)
    assert trained().choose([], 3) == []


def test_observe_task_that_becomes_solvable_gains_weight() -> None:
    curriculum = trained()
    before = curriculum.weight("never")
    curriculum.observe("never", [1.0, 0.0])
    assert curriculum.weight("never") > before
    curriculum.observe("never", [])


def test_state_saved_and_loaded_goes_on_as_before() -> None:
    first, second = trained(), Curriculum(0)
    first.choose(TASKS, 2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [first.choose(TASKS, 2) for _ in range(5)] == [second.choose(TASKS, 2) for _ in range(5)]
    with pytest.raises(CheckpointError, match="malformed"):
        second.load_state_dict({"choices": "many"})


def test_ledger_startable_chosen_tasks_are_played_once_per_epoch() -> None:
    ledger, curriculum = TaskLedger(TASKS, seed=0, max_epochs=2), trained()
    played: list[str] = []
    while startable := ledger.startable():
        for task_id in curriculum.choose(list(startable), 2):
            (ticket,) = ledger.claim([startable[task_id]])
            played.append(ticket.group_id)
            ledger.finish(ticket.group_id)
            ledger.train(ticket.group_id, 1)
    assert sorted(played) == sorted(f"{epoch}:{task_id}" for epoch in (0, 1) for task_id in TASKS)
    assert ledger.is_exhausted


def test_queue_returned_groups_come_before_the_curriculums_choice() -> None:
    queue = TaskQueue(TaskLedger(TASKS, seed=0, max_epochs=1), trained())
    lost = [ticket.group_id for ticket in queue.take(2)]
    queue.ledger.return_unfinished(lost)
    assert {ticket.group_id for ticket in queue.take(2)} == set(lost)
    assert len(queue.take(99)) == len(TASKS) - 2


def test_queue_saved_and_loaded_takes_the_same_groups() -> None:
    first = TaskQueue(TaskLedger(TASKS, seed=0, max_epochs=3), trained())
    for ticket in first.take(2):
        first.ledger.finish(ticket.group_id)
        first.ledger.train(ticket.group_id, 1)
    second = TaskQueue(TaskLedger(TASKS, seed=0, max_epochs=3), Curriculum(0))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())), TASKS, 3)
    assert first.take(4) == second.take(4)
    with pytest.raises(CheckpointError, match="task queue is malformed"):
        second.load_state_dict({}, TASKS, 3)
