"""`RolloutPool`: all rollout workers of a run, as the coordinator sees them.

Invariants: at most `rollout_max_concurrency` episodes are under way over all workers; a worker serves only after it has
loaded and proved the newest weights; a dead worker's groups are played again by another one, up to the retry limit, and
then come back as `worker_lost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from actors.remote import CALL_TIMEOUT_S, Handle, ask, is_loss, value_of, within
from actors.rollout_worker import RETRY_PAUSE_S, RolloutWorker, WorkerSettings
from actors.weight_sync import Publication
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.episode import EpisodeLimits
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import (
    ClusterError,
    DeadlineError,
    EngineError,
    Outcome,
    SupersededError,
    WeightSyncError,
    first_line,
)
from rl_cluster.scheduling.worker_health import HealthPolicy, WorkerHealth, WorkerState

MONITOR_INTERVAL_S = 5.0
REFRESH_TIMEOUT_S = 1.0


@dataclass
class _Worker:
    worker_id: str
    health: WorkerHealth
    actor: Handle | None = None
    under_way: int = 0
    statistics: dict[str, float] = field(default_factory=dict)
    past_busy_s: float = 0.0


class RolloutPool:
    """Starts, feeds, watches and replaces workers."""

    def __init__(
        self,
        settings: WorkerSettings,
        num_workers: int,
        max_concurrency: int,
        options: dict[str, Any],
        sync: Handle,
        health: HealthPolicy,
        on_event: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.options = options
        self.sync = sync
        self.on_event = on_event
        now = time.monotonic()
        self.workers = [_Worker(f"worker-{i}", WorkerHealth(f"worker-{i}", health, now)) for i in range(num_workers)]
        self.max_concurrency = max_concurrency
        self.under_way = 0
        self.changed = asyncio.Condition()
        self.tasks: list[asyncio.Task[None]] = []
        self.failure: BaseException | None = None
        self.started_at = now

    async def start(self) -> None:
        """Starts all workers; each loads the newest publication before it serves. One that fails ends the start."""
        await asyncio.gather(*(self._start_first(worker) for worker in self.workers))
        self.tasks = [asyncio.create_task(self._watch(worker)) for worker in self.workers]
        for task in self.tasks:
            task.add_done_callback(self._watched)
        self.started_at = time.monotonic()

    async def _start_first(self, worker: _Worker) -> None:
        """Without the replacements of later: what ends a worker at its start would most likely end its successor."""
        try:
            await self._start(worker)
        except RayError as error:
            if not is_loss(error):
                raise
            raise ClusterError(
                f"{worker.worker_id} died while it started ({first_line(error)}), most likely for lack of memory; give its node more, or "
                "lower rollout.kv_cache_gib (on a CPU) or rollout.gpu_memory_utilization (on a GPU)."
            ) from error

    async def _start(self, worker: _Worker) -> None:
        incarnation = worker.health.incarnation
        actor: Any = RolloutWorker.options(**self.options).remote(worker.worker_id, self.settings, self.sync)
        worker.actor = actor
        deadline = self.settings.start_timeout_s
        try:
            await within(deadline, actor.start.remote())
            worker.health.on_started(time.monotonic(), incarnation)
            publication = await within(deadline, self._apply_newest(worker, deadline))
        except DeadlineError:
            raise
        except TimeoutError as error:
            raise DeadlineError(
                f"{worker.worker_id} did not start within rollout.start_timeout_s={deadline:.0f} s; is its node alive, and "
                "does the cluster have the resources that dry_run=true lists?"
            ) from error
        worker.health.on_synced(time.monotonic(), incarnation, publication.weights.version)

    async def _apply_newest(self, worker: _Worker, deadline_s: float) -> Publication:
        assert worker.actor is not None
        while True:
            waiting = self.sync.wait_newer.remote(worker.worker_id, 0, deadline_s)
            publication = await ask("The weight sync", waiting, deadline_s + CALL_TIMEOUT_S)
            if publication is None:
                raise DeadlineError("No weights were published before the workers started.")
            # A newer publication has taken its place, and nothing was loaded.
            with contextlib.suppress(SupersededError):
                await value_of(worker.actor.apply.remote(publication))
                return publication

    async def run_group(
        self, group_id: str, task: Task, size: int, limits: EpisodeLimits, oldest_version: int = 0
    ) -> list[Trajectory]:
        """Plays a group on one worker, whose prefix cache then holds the shared prompt; the worker's weights are at least of
        `oldest_version`. Cancelling it ends the episodes on the worker too."""
        for _ in range(self.settings.rollout_max_retries + 1):
            worker = await self._acquire(size, oldest_version)
            incarnation = worker.health.incarnation
            assert worker.actor is not None
            playing = worker.actor.run_group.remote(group_id, task, size, limits)
            try:
                return await within(self._group_deadline_s, value_of(playing))
            except (RayError, EngineError, TimeoutError) as error:
                await self._lost(worker, incarnation, self._why_lost(error))
            except asyncio.CancelledError:
                ray.cancel(playing)
                raise
            finally:
                await self._release(worker, size)
        return [_lost_episode(group_id, task, self.settings.index_ids[task.corpus]) for _ in range(size)]

    def _why_lost(self, error: BaseException) -> str:
        """Why the worker of a group that failed must be replaced; raises any other error that the worker raised."""
        if isinstance(error, TimeoutError) and not isinstance(error, RayError):
            return f"a group took over {self._group_deadline_s:.0f} s"
        if is_loss(error) or isinstance(error, EngineError | TimeoutError):
            return _without_traceback(error)
        raise error

    @property
    def _group_deadline_s(self) -> float:
        """All tries of an episode, the pauses between them and some air: the worker keeps the deadlines of its episodes itself."""
        tries = self.settings.rollout_max_retries + 1
        return tries * (self.settings.rollout_timeout + RETRY_PAUSE_S * tries) + 60.0

    async def _acquire(self, size: int, oldest_version: int) -> _Worker:
        async with self.changed:
            await self.changed.wait_for(
                lambda: self.failure is not None or self._free_worker(size, oldest_version) is not None
            )
            if self.failure is not None:
                raise self.failure
            worker = self._free_worker(size, oldest_version)
            assert worker is not None
            worker.under_way += size
            self.under_way += size
            return worker

    async def _release(self, worker: _Worker, size: int) -> None:
        async with self.changed:
            worker.under_way -= size
            self.under_way -= size
            self.changed.notify_all()

    def _free_worker(self, size: int, oldest_version: int) -> _Worker | None:
        if self.under_way and self.under_way + size > self.max_concurrency:
            return None
        ready = [worker for worker in self.workers if worker.health.accepts_work]
        ready = [worker for worker in ready if (worker.health.weight_version or 0) >= oldest_version]
        return min(ready, key=lambda worker: worker.under_way, default=None)

    def room(self, size: int) -> int:
        """How many groups of `size` could start at once."""
        if not any(worker.health.accepts_work for worker in self.workers):
            return 0
        return max(int(self.under_way == 0), (self.max_concurrency - self.under_way) // size)

    def version_with_room(self, size: int, oldest_version: int) -> int | None:
        """The weight version, as last seen, of the worker that would play a group of `size` now; None when none would that has
        at least `oldest_version`."""
        worker = self._free_worker(size, oldest_version)
        return None if worker is None else worker.health.weight_version

    async def _watch(self, worker: _Worker) -> None:
        """Follows one worker for good: weights, heartbeats, death and restart."""
        while True:
            assert worker.actor is not None
            incarnation = worker.health.incarnation
            following = asyncio.ensure_future(value_of(worker.actor.follow_weights.remote()))
            beating = asyncio.ensure_future(self._heartbeat(worker, incarnation))
            done, waiting = await asyncio.wait({following, beating}, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            errors = [error for task in done if (error := task.exception()) is not None]
            await self._lost(worker, incarnation, _without_traceback(errors[0]) if errors else worker.health.reason)
            if not await self._replace(worker):
                return

    def _watched(self, task: asyncio.Task[None]) -> None:
        """A watcher that dies leaves its worker unwatched: the run ends with its error, also for who waits for a worker."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.tasks.append(asyncio.create_task(self._fail(error)))

    async def _heartbeat(self, worker: _Worker, incarnation: int) -> None:
        assert worker.actor is not None
        while worker.health.state is not WorkerState.DEAD:
            await asyncio.sleep(MONITOR_INTERVAL_S)
            beat = asyncio.ensure_future(value_of(worker.actor.statistics.remote()))
            await asyncio.wait({beat}, timeout=MONITOR_INTERVAL_S * 2)
            if beat.done():
                worker.statistics = beat.result()
                worker.health.on_heartbeat(time.monotonic(), incarnation)
                worker.health.weight_version = int(worker.statistics["version"])
                async with self.changed:
                    self.changed.notify_all()
            else:
                beat.cancel()
            alive = worker.health.state is not WorkerState.DEAD
            if alive and worker.health.tick(time.monotonic()) is WorkerState.DEAD:
                self.on_event(f"{worker.worker_id} is lost: {worker.health.reason}")

    async def _lost(self, worker: _Worker, incarnation: int, reason: str) -> None:
        if worker.health.incarnation != incarnation or worker.health.state is WorkerState.DEAD:
            return
        worker.health.on_failure(time.monotonic(), incarnation, reason)
        self.on_event(f"{worker.worker_id} is lost: {reason}")

    async def _replace(self, worker: _Worker) -> bool:
        await ask("The weight sync", self.sync.unregister.remote(worker.worker_id))
        worker.past_busy_s += worker.statistics.get("busy_s", 0.0)
        worker.statistics = {}
        if worker.actor is not None:
            ray.kill(worker.actor, no_restart=True)
        if not worker.health.restart(time.monotonic()):
            restarts = worker.health.policy.max_restarts
            gone = f"{worker.worker_id} failed for good, after rollout.max_restarts={restarts} restarts: {worker.health.reason}"
            self.on_event(gone)
            if all(other.health.is_lost for other in self.workers):
                await self._fail(ClusterError(gone))
            return False
        self.on_event(f"{worker.worker_id} is started again ({worker.health.restarts_left} restarts left)")
        try:
            await self._start(worker)
        except (RayError, DeadlineError, EngineError, WeightSyncError) as error:
            await self._lost(worker, worker.health.incarnation, _without_traceback(error))
            return await self._replace(worker)
        async with self.changed:
            self.changed.notify_all()
        return True

    async def _fail(self, error: BaseException) -> None:
        async with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    async def refresh(self) -> None:
        """Asks all serving workers for their statistics now; one that does not answer at once keeps nobody waiting."""
        serving = [worker for worker in self.workers if worker.health.accepts_work and worker.actor is not None]
        beats = {
            asyncio.ensure_future(value_of(w.actor.statistics.remote())): w for w in serving if w.actor is not None
        }
        if not beats:
            return
        done, late = await asyncio.wait(beats, timeout=REFRESH_TIMEOUT_S)
        for beat in late:
            beat.cancel()
        for beat in done:
            if beat.exception() is None:
                beats[beat].statistics = beat.result()
                beats[beat].health.weight_version = int(beat.result()["version"])

    def total(self, name: str) -> float:
        """A statistic summed over workers."""
        past = sum(worker.past_busy_s for worker in self.workers) if name == "busy_s" else 0.0
        return past + sum(worker.statistics.get(name, 0.0) for worker in self.workers)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Ends all workers, their engines first."""
        for task in self.tasks:
            task.cancel()
        actors = [worker.actor for worker in self.workers if worker.actor is not None]
        closing = [asyncio.ensure_future(value_of(actor.close.remote())) for actor in actors]
        if closing:
            await asyncio.wait(closing, timeout=timeout_s)
        for task in closing:
            if task.done():
                task.exception()
        for actor in actors:
            ray.kill(actor, no_restart=True)


def _without_traceback(error: BaseException) -> str:
    """What went wrong, without Ray's account of where."""
    return first_line(getattr(error, "cause", None) or error)


def _lost_episode(group_id: str, task: Task, index_id: str) -> Trajectory:
    return Trajectory(
        trajectory_id=os.urandom(16).hex(),
        task_id=task.task_id,
        group_id=group_id,
        turns=[],
        outcome=Outcome.WORKER_LOST,
        index_id=index_id,
        error="the worker was lost in every try",
    )
