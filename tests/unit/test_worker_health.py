"""Worker health: deadlines, restarts, and no way from the dead to work without a sync."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.errors import ConfigError
from rl_cluster.scheduling.worker_health import HealthPolicy, WorkerHealth, WorkerState

POLICY = HealthPolicy(start_deadline_s=100, sync_deadline_s=50, suspect_after_s=10, dead_after_s=20, max_restarts=2)


def healthy_worker(now: float = 0.0) -> WorkerHealth:
    worker = WorkerHealth("w0", POLICY, now)
    worker.on_started(now, 0)
    worker.on_synced(now, 0, weight_version=4)
    return worker


def test_worker_start_and_sync_become_healthy() -> None:
    worker = WorkerHealth("w0", POLICY, 0.0)
    assert worker.state is WorkerState.STARTING
    assert not worker.accepts_work
    assert worker.on_started(5, 0) is WorkerState.SYNCING
    assert worker.on_synced(6, 0, 3) is WorkerState.HEALTHY
    assert worker.accepts_work
    assert worker.weight_version == 3
    assert worker.on_sync_started(7, 0) is WorkerState.SYNCING
    assert not worker.accepts_work


def test_worker_silence_is_suspect_then_dead_and_a_heartbeat_clears_suspicion() -> None:
    worker = healthy_worker()
    assert worker.tick(9.9) is WorkerState.HEALTHY
    assert worker.tick(10) is WorkerState.SUSPECT
    assert not worker.accepts_work
    assert worker.on_heartbeat(11, 0) is WorkerState.HEALTHY
    assert worker.tick(21) is WorkerState.SUSPECT
    assert worker.tick(41) is WorkerState.DEAD
    assert worker.reason == "no heartbeat for 30 s"
    assert worker.weight_version is None


def test_worker_rare_ticks_pass_both_deadlines_at_once() -> None:
    assert healthy_worker().tick(29.9) is WorkerState.SUSPECT
    assert healthy_worker().tick(30) is WorkerState.DEAD


@pytest.mark.parametrize("reach", ["starting", "syncing", "restarting"])
def test_worker_waiting_state_past_its_deadline_is_dead(reach: str) -> None:
    """Invariant 10: the reason names what is missing, and heartbeats do not put it off."""
    worker = WorkerHealth("w0", POLICY, 0.0)
    if reach == "syncing":
        worker.on_started(0, 0)
    elif reach == "restarting":
        worker.on_failure(0, 0, "gone")
        worker.restart(0)
    deadline = 50 if reach == "syncing" else 100
    worker.on_heartbeat(deadline - 1, worker.incarnation)
    assert worker.tick(deadline - 1) is WorkerState(reach)
    assert worker.tick(deadline) is WorkerState.DEAD
    assert worker.reason == ("weights not loaded within 50 s" if reach == "syncing" else "not started within 100 s")


def test_worker_failed_sync_is_dead_and_late_success_is_ignored() -> None:
    worker = WorkerHealth("w0", POLICY, 0.0)
    worker.on_started(1, 0)
    assert worker.on_failure(2, 0, "digest mismatch") is WorkerState.DEAD
    assert worker.on_synced(3, 0, 5) is WorkerState.DEAD
    assert worker.on_heartbeat(3, 0) is WorkerState.DEAD
    assert worker.weight_version is None


def test_worker_restart_ignores_the_old_incarnation_and_needs_a_sync() -> None:
    worker = healthy_worker()
    worker.on_failure(1, 0, "killed")
    assert worker.restart(2)
    assert worker.on_started(3, 0) is WorkerState.RESTARTING
    assert worker.on_heartbeat(3, 1) is WorkerState.RESTARTING
    with pytest.raises(RuntimeError, match="restarting and cannot become healthy"):
        worker.on_synced(3, 1, 5)
    assert worker.on_started(4, 1) is WorkerState.SYNCING
    assert worker.on_failure(5, 0, "late word") is WorkerState.SYNCING
    assert worker.on_synced(6, 1, 5) is WorkerState.HEALTHY


def test_worker_restart_budget_spent_is_lost() -> None:
    worker = healthy_worker()
    for incarnation in range(3):
        worker.on_failure(1, incarnation, "killed")
        assert worker.restart(2) is (incarnation < 2)
    assert worker.is_lost
    with pytest.raises(RuntimeError, match="only a dead worker"):
        healthy_worker().restart(0)


@settings(max_examples=500, deadline=None)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["started", "sync_started", "synced", "heartbeat", "failure", "tick", "restart"]),
            st.floats(0, 60),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
def test_worker_any_history_reaches_healthy_only_through_syncing(events: list[tuple[str, float, int]]) -> None:
    worker = WorkerHealth("w0", POLICY, 0.0)
    now = 0.0
    synced_incarnation = -1
    for event, wait, incarnation in events:
        now += wait
        before = worker.state
        try:
            if event == "started":
                worker.on_started(now, incarnation)
            elif event == "sync_started":
                worker.on_sync_started(now, incarnation)
            elif event == "synced":
                worker.on_synced(now, incarnation, 1)
            elif event == "heartbeat":
                worker.on_heartbeat(now, incarnation)
            elif event == "failure":
                worker.on_failure(now, incarnation, "x")
            elif event == "restart":
                worker.restart(now)
            else:
                worker.tick(now)
        except RuntimeError:
            assert worker.state is before
        if worker.state is WorkerState.SYNCING:
            synced_incarnation = worker.incarnation
        if worker.state is WorkerState.HEALTHY:
            assert before in (WorkerState.SYNCING, WorkerState.SUSPECT, WorkerState.HEALTHY)
            assert synced_incarnation == worker.incarnation
            assert worker.weight_version == 1
        assert worker.incarnation <= POLICY.max_restarts


@pytest.mark.parametrize("bad", [{"start_deadline_s": 0}, {"dead_after_s": float("nan")}, {"max_restarts": -1}])
def test_policy_impossible_deadlines_raise(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        HealthPolicy(**bad)  # pyright: ignore[reportArgumentType]
