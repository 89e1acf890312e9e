"""Task ledger: each group of an epoch is trained once or dropped once, crashes and resumes included."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rl_cluster.errors import CheckpointError, ConfigError, DataError, DropReason
from rl_cluster.scheduling.ledger import GroupState, TaskLedger, Ticket

TASKS = [f"q{i}" for i in range(150)]


def reload(ledger: TaskLedger, task_ids: list[str], max_epochs: int | None = None) -> TaskLedger:
    return TaskLedger.from_state_dict(json.loads(json.dumps(ledger.state_dict())), task_ids, max_epochs)


def test_take_names_groups_by_epoch_and_task() -> None:
    ledger = TaskLedger(["a", "b:c"], seed=0, max_epochs=2, shuffle=False)
    assert ledger.take(3) == [Ticket("0:a", "a", 0), Ticket("0:b:c", "b:c", 0), Ticket("1:a", "a", 1)]
    assert [ticket.group_id for ticket in ledger.take(9)] == ["1:b:c"]
    assert ledger.take(1) == []


def test_take_shuffled_order_depends_on_seed_and_epoch_alone() -> None:
    def order(task_ids: list[str], seed: int) -> list[str]:
        return [ticket.task_id for ticket in TaskLedger(task_ids, seed, 2, shuffle=True).take(300)]

    assert order(TASKS, 1) == order(TASKS[::-1], 1)
    assert order(TASKS, 1) != order(TASKS, 2)
    assert order(TASKS, 1)[:150] != order(TASKS, 1)[150:]
    assert sorted(order(TASKS, 1)[:150]) == sorted(TASKS)


def test_transitions_illegal_raise() -> None:
    ledger = TaskLedger(["a", "b"], seed=0, max_epochs=1, shuffle=False)
    with pytest.raises(RuntimeError, match="'0:a' is pending and cannot become finished"):
        ledger.finish("0:a")
    ledger.take(1)
    with pytest.raises(RuntimeError, match="in_flight and cannot become trained"):
        ledger.train("0:a", 1)
    ledger.finish("0:a")
    ledger.train("0:a", 1)
    for again in (
        lambda: ledger.train("0:a", 2),
        lambda: ledger.drop("0:a", DropReason.STALE),
        lambda: ledger.finish("0:a"),
        lambda: ledger.return_unfinished(["0:a"]),
    ):
        with pytest.raises(RuntimeError, match="'0:a' is trained"):
            again()
    for foreign in ("1:a", "0:z", "a", "x:a"):
        with pytest.raises(RuntimeError, match="is no group of this run"):
            ledger.finish(foreign)
    assert ledger.state("0:b") is GroupState.PENDING


def test_return_unfinished_puts_groups_first_in_line() -> None:
    ledger = TaskLedger(list("abcdef"), seed=0, max_epochs=1, shuffle=False)
    ledger.take(4)
    ledger.finish("0:b")
    assert ledger.return_unfinished() == ["0:a", "0:c", "0:d"]
    assert ledger.return_unfinished(["0:b"]) == ["0:b"]
    assert [ticket.task_id for ticket in ledger.take(5)] == list("abcde")


def test_claim_takes_pending_groups_out_of_turn_once() -> None:
    ledger = TaskLedger(list("abcdef"), seed=0, max_epochs=1, shuffle=False)
    ledger.take(2)
    resumed = reload(ledger, list("abcdef"))
    assert resumed.returned_ids() == ["0:a", "0:b"]
    assert resumed.claim(["0:e", "0:b"]) == [Ticket("0:e", "e", 0), Ticket("0:b", "b", 0)]
    for bad in (["0:e"], ["0:c", "0:c"], ["0:c", "9:c"]):
        with pytest.raises(RuntimeError):
            resumed.claim(bad)
    assert resumed.returned_ids() == ["0:a"]
    assert [ticket.task_id for ticket in resumed.take(2)] == ["a", "c"]
    assert resumed.return_unfinished(["0:e"]) == ["0:e"]
    assert [ticket.task_id for ticket in resumed.take(9)] == ["e", "d", "f"]
    assert resumed.num_open == 6


def test_summary_counts_by_state_and_reason() -> None:
    ledger = TaskLedger(list("abcdef"), seed=0, max_epochs=2, shuffle=False)
    ledger.take(5)
    for task in "abc":
        ledger.finish(f"0:{task}")
    ledger.train("0:a", 1)
    ledger.drop("0:b", DropReason.STALE)
    ledger.drop("0:d", DropReason.INFRASTRUCTURE)
    assert ledger.summary() == {
        "total": 12,
        "pending": 7,
        "in_flight": 1,
        "finished": 1,
        "trained": 1,
        "dropped": 2,
        "dropped_by_reason": {"stale": 1, "infrastructure": 1},
    }
    assert ledger.num_open == 2
    assert not ledger.is_exhausted


def test_resume_after_a_dropped_group_repeats_no_trained_id() -> None:
    """Invariant 5: drop group 2 of 150, save, resume; no trained id runs again."""
    ledger = TaskLedger(TASKS, seed=3, max_epochs=1, shuffle=True)
    trained = []
    for number, ticket in enumerate(ledger.take(100)):
        ledger.finish(ticket.group_id)
        if number == 1:
            ledger.drop(ticket.group_id, DropReason.STALE)
        else:
            ledger.train(ticket.group_id, number // 8)
            trained.append(ticket.group_id)
    resumed = reload(ledger, TASKS)
    later = [ticket.group_id for ticket in resumed.take(150)]
    assert len(later) == 50
    assert not set(later) & set(trained)


def test_resume_after_kill_in_mid_epoch_covers_the_data_set_once() -> None:
    """Buffered and in-flight groups come back, first in line; the long ones are not lost."""
    ledger = TaskLedger(TASKS, seed=3, max_epochs=1, shuffle=True)
    first = [ticket.group_id for ticket in ledger.take(60)]
    for group_id in first[:50]:
        ledger.finish(group_id)
    for group_id in first[:40]:
        ledger.train(group_id, 1)
    resumed = reload(ledger, TASKS[::-1])
    later = [ticket.group_id for ticket in resumed.take(1000)]
    assert later[:20] == first[40:]
    assert Counter(first[:40] + later) == Counter(f"0:{task}" for task in TASKS)


def test_resume_other_tasks_is_refused() -> None:
    state = TaskLedger(["a", "b"], seed=0, max_epochs=1).state_dict()
    with pytest.raises(CheckpointError, match="not those of the checkpoint"):
        TaskLedger.from_state_dict(state, ["a", "c"])


@pytest.mark.parametrize(
    "change",
    [
        {"format": 99},
        {"trained": None},
        {"trained": {"0:a": "x"}},
        {"dropped": {"0:a": "because"}},
        {"unfinished": ["7:a"]},
        {"unfinished": ["0:a"], "trained": {"0:a": 1}},
    ],
)
def test_resume_malformed_state_is_refused(change: dict[str, object]) -> None:
    state = TaskLedger(["a", "b"], seed=0, max_epochs=1).state_dict() | change
    with pytest.raises(CheckpointError):
        TaskLedger.from_state_dict(state, ["a", "b"])


def test_resume_more_epochs_lengthens_the_run() -> None:
    ledger = TaskLedger(["a"], seed=0, max_epochs=1)
    ledger.finish(ledger.take(1)[0].group_id)
    ledger.train("0:a", 1)
    assert ledger.is_exhausted
    longer = reload(ledger, ["a"], max_epochs=2)
    assert [ticket.group_id for ticket in longer.take(5)] == ["1:a"]


def test_ledger_impossible_inputs_raise() -> None:
    with pytest.raises(DataError, match="no tasks"):
        TaskLedger([], 0, 1)
    with pytest.raises(DataError, match="'a' occurs more than once"):
        TaskLedger(["a", "a"], 0, 1)
    with pytest.raises(ConfigError, match="max_epochs=0"):
        TaskLedger(["a"], 0, 0)


class LedgerMachine(RuleBasedStateMachine):
    """A run that loses workers, crashes and resumes at will; the model keeps what the surviving lineage has trained."""

    @initialize(tasks=st.integers(1, 6), epochs=st.integers(1, 3), shuffle=st.booleans(), seed=st.integers(0, 3))
    def begin(self, tasks: int, epochs: int, shuffle: bool, seed: int) -> None:
        self.tasks = [f"t{i}" for i in range(tasks)]
        self.expected = {f"{epoch}:{task}" for epoch in range(epochs) for task in self.tasks}
        self.ledger = TaskLedger(self.tasks, seed, epochs, shuffle)
        self.in_flight: list[str] = []
        self.finished: list[str] = []
        self.final: Counter[str] = Counter()
        self.saved = (json.dumps(self.ledger.state_dict()), Counter(self.final))

    @rule(n=st.integers(0, 4))
    def take(self, n: int) -> None:
        self.in_flight += [ticket.group_id for ticket in self.ledger.take(n)]

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        pending = sorted(key for key in self.expected if self.ledger.state(key) is GroupState.PENDING)
        if pending:
            named = data.draw(st.lists(st.sampled_from(pending), unique=True, max_size=3))
            assert [ticket.group_id for ticket in self.ledger.claim(named)] == named
            self.in_flight += named

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.in_flight:
            group_id = data.draw(st.sampled_from(self.in_flight))
            self.in_flight.remove(group_id)
            self.ledger.finish(group_id)
            self.finished.append(group_id)

    @rule(data=st.data(), step=st.integers(1, 9))
    def train(self, data: st.DataObject, step: int) -> None:
        if self.finished:
            group_id = data.draw(st.sampled_from(self.finished))
            self.finished.remove(group_id)
            self.ledger.train(group_id, step)
            self.final[group_id] += 1

    @rule(data=st.data(), reason=st.sampled_from(list(DropReason)))
    def drop(self, data: st.DataObject, reason: DropReason) -> None:
        candidates = self.in_flight + self.finished
        if candidates:
            group_id = data.draw(st.sampled_from(candidates))
            (self.in_flight if group_id in self.in_flight else self.finished).remove(group_id)
            self.ledger.drop(group_id, reason)
            self.final[group_id] += 1

    @rule()
    def lose_workers(self) -> None:
        assert sorted(self.ledger.return_unfinished()) == sorted(self.in_flight)
        self.in_flight = []

    @rule()
    def save(self) -> None:
        self.saved = (json.dumps(self.ledger.state_dict()), Counter(self.final))

    @rule()
    def crash_and_resume(self) -> None:
        state, final = self.saved
        self.ledger = TaskLedger.from_state_dict(json.loads(state), self.tasks)
        self.final = Counter(final)
        self.in_flight, self.finished = [], []

    @invariant()
    def counts_add_up(self) -> None:
        if not hasattr(self, "ledger"):
            return
        summary = self.ledger.summary()
        states = ("pending", "in_flight", "finished", "trained", "dropped")
        assert sum(summary[state] for state in states) == summary["total"] == len(self.expected)
        assert sum(summary["dropped_by_reason"].values()) == summary["dropped"]
        assert summary["in_flight"] == len(self.in_flight)
        assert self.ledger.num_open == len(self.in_flight) + len(self.finished)
        assert summary["trained"] + summary["dropped"] == sum(self.final.values())

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for group_id in self.in_flight:
            self.ledger.finish(group_id)
        for group_id in self.in_flight + self.finished:
            self.ledger.train(group_id, 10)
            self.final[group_id] += 1
        for ticket in self.ledger.take(len(self.expected)):
            self.ledger.finish(ticket.group_id)
            self.ledger.train(ticket.group_id, 11)
            self.final[ticket.group_id] += 1
        assert self.final == Counter(self.expected)
        assert self.ledger.is_exhausted


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_ledger_any_history_ends_each_group_exactly_once = pytest.mark.slow(LedgerMachine.TestCase)
