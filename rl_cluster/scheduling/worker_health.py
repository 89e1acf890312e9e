"""`WorkerHealth`: what the coordinator believes of one worker, from its events and from time alone.

Invariants:
- STARTING -> SYNCING -> HEALTHY <-> SUSPECT; each of these, and RESTARTING, may become DEAD;
  DEAD -> RESTARTING -> SYNCING.
- A DEAD or RESTARTING worker never becomes HEALTHY without SYNCING: it has to load the current weights first.
- A sync that failed half-way makes the worker DEAD: its engine is restarted, never resumed.
- Events carry the incarnation they come from; those of an earlier one are ignored, so that the late word of a process
  that was given up revives nobody.
- Every waiting state has a deadline. Time is the argument `now` (seconds, any clock that does not go back); the machine
  reads no clock itself. At most `max_restarts` restarts are granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rl_cluster.errors import ConfigError


class WorkerState(StrEnum):
    """What is believed of a worker."""

    STARTING = "starting"
    SYNCING = "syncing"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    DEAD = "dead"
    RESTARTING = "restarting"


@dataclass(frozen=True)
class HealthPolicy:
    """Deadlines in seconds, all > 0: a start, a weight sync, silence until suspect, further silence until dead."""

    start_deadline_s: float = 600.0
    sync_deadline_s: float = 300.0
    suspect_after_s: float = 15.0
    dead_after_s: float = 45.0
    max_restarts: int = 3

    def __post_init__(self) -> None:
        for name in ("start_deadline_s", "sync_deadline_s", "suspect_after_s", "dead_after_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be a time over 0 seconds.")
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts={self.max_restarts} must be >= 0.")


class WorkerHealth:
    """The state machine of one worker. Methods that report an event return the new state.

    An event that does not fit the state raises RuntimeError, except heartbeats and events of earlier incarnations,
    which may arrive at any time and are ignored where they mean nothing.
    """

    def __init__(self, worker_id: str, policy: HealthPolicy, now: float) -> None:
        self.worker_id = worker_id
        self.policy = policy
        self.state = WorkerState.STARTING
        self.incarnation = 0
        self.weight_version: int | None = None
        self.reason = ""
        self._since = now

    @property
    def accepts_work(self) -> bool:
        """Whether new episodes may be sent: HEALTHY alone."""
        return self.state is WorkerState.HEALTHY

    @property
    def restarts_left(self) -> int:
        return self.policy.max_restarts - self.incarnation

    @property
    def is_lost(self) -> bool:
        """DEAD with no restart left."""
        return self.state is WorkerState.DEAD and self.restarts_left == 0

    def on_started(self, now: float, incarnation: int) -> WorkerState:
        """The process is up; it loads the weights next."""
        return self._event(now, incarnation, WorkerState.SYNCING, {WorkerState.STARTING, WorkerState.RESTARTING})

    def on_sync_started(self, now: float, incarnation: int) -> WorkerState:
        """A serving worker has paused to load newer weights."""
        return self._event(now, incarnation, WorkerState.SYNCING, {WorkerState.HEALTHY, WorkerState.SUSPECT})

    def on_synced(self, now: float, incarnation: int, weight_version: int) -> WorkerState:
        """The worker has loaded and proved a weight version, and serves."""
        if incarnation == self.incarnation and self.state is WorkerState.SYNCING:
            self.weight_version = weight_version
        return self._event(now, incarnation, WorkerState.HEALTHY, {WorkerState.SYNCING})

    def on_heartbeat(self, now: float, incarnation: int) -> WorkerState:
        """A sign of life: clears suspicion; a start or a sync still has its own deadline, and the dead stay dead."""
        if incarnation == self.incarnation and self.state in (WorkerState.HEALTHY, WorkerState.SUSPECT):
            self._enter(WorkerState.HEALTHY, now)
        return self.state

    def on_failure(self, now: float, incarnation: int, reason: str) -> WorkerState:
        """The process died, its engine failed, or a sync broke off; a second report of one death changes nothing."""
        if incarnation == self.incarnation and self.state is not WorkerState.DEAD:
            self._die(now, reason)
        return self.state

    def tick(self, now: float) -> WorkerState:
        """Apply the deadlines; a long gap between ticks may pass two of them at once."""
        waited = now - self._since
        if self.state is WorkerState.HEALTHY and waited >= self.policy.suspect_after_s:
            self._enter(WorkerState.SUSPECT, self._since + self.policy.suspect_after_s)
            waited = now - self._since
        if self.state is WorkerState.SUSPECT and waited >= self.policy.dead_after_s:
            silent = self.policy.suspect_after_s + self.policy.dead_after_s
            self._die(now, f"no heartbeat for {silent:g} s")
        elif self.state is WorkerState.SYNCING and waited >= self.policy.sync_deadline_s:
            self._die(now, f"weights not loaded within {self.policy.sync_deadline_s:g} s")
        elif self.state in (WorkerState.STARTING, WorkerState.RESTARTING) and waited >= self.policy.start_deadline_s:
            self._die(now, f"not started within {self.policy.start_deadline_s:g} s")
        return self.state

    def restart(self, now: float) -> bool:
        """Begin a restart of a DEAD worker as the next incarnation; False when the budget is spent.

        Raises RuntimeError for a worker that is not DEAD.
        """
        if self.state is not WorkerState.DEAD:
            raise RuntimeError(f"Worker {self.worker_id} is {self.state.value}; only a dead worker is restarted.")
        if self.restarts_left == 0:
            return False
        self.incarnation += 1
        self._enter(WorkerState.RESTARTING, now)
        return True

    def _event(self, now: float, incarnation: int, target: WorkerState, allowed: set[WorkerState]) -> WorkerState:
        # A process may report success just after it was declared dead: it is no error, and it stays dead.
        if incarnation != self.incarnation or self.state is WorkerState.DEAD:
            return self.state
        if self.state not in allowed:
            raise RuntimeError(f"Worker {self.worker_id} is {self.state.value} and cannot become {target.value}.")
        self._enter(target, now)
        return self.state

    def _die(self, now: float, reason: str) -> None:
        self.reason = reason
        self.weight_version = None
        self._enter(WorkerState.DEAD, now)

    def _enter(self, state: WorkerState, now: float) -> None:
        self.state = state
        self._since = now
