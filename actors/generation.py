"""`Generation`: groups between the task queue and the learner: started, played, given up, or kept for a step.

Invariants: no group starts that the staleness bound could not train, judged by the weights of the worker that would play
it, so that one that lags holds back nobody; a group is finished in the ledger only after the buffer has it on disk; a group
that a step waits for because it would be too old for the next, longer than `training.straggler_timeout_s`, is cancelled and
dropped with that reason (what hangs on newer weights ends by the pool's own deadline of a group, which plays it again); when
groups are lost again and again, the run ends instead of using up its tasks.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from actors.event_log import EventLog
from actors.remote import Handle, ask, within
from actors.rollout_pool import RolloutPool
from rl_cluster.algorithms.types import AdvantageSettings
from rl_cluster.config import Config
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.episode import EpisodeLimits
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import ClusterError, DropReason, LearnerError
from rl_cluster.learning.batch import has_signal
from rl_cluster.scheduling.ledger import Ticket
from rl_cluster.scheduling.selection import most_varied
from rl_cluster.scheduling.staleness import StalenessPolicy
from rl_cluster.scheduling.task_queue import TaskQueue
from rl_cluster.tracking.run_tracker import RunTracker

POLL_S = 1.0
READY_POLL_S = 0.2
NO_TOKENS = (
    "no reply was sampled, since the prompts leave no room; raise rollout.max_sequence_length or shorten the questions"
)


@dataclass
class _Flight:
    """A group under way: the version of the worker that it was given to, when a step began to wait for it (seconds, monotonic), and
    whether it can still be cancelled."""

    version: int
    awaited_since: float | None = None
    task: asyncio.Task[None] | None = None
    playing: bool = True


class Generation:
    """`run` generates until it is stopped; `next_groups` gives the learner what a step needs."""

    def __init__(
        self,
        config: Config,
        tasks: dict[str, Task],
        queue: TaskQueue,
        pool: RolloutPool,
        buffer: Handle,
        policy: StalenessPolicy,
        limits: EpisodeLimits,
        completed_steps: int,
        log: EventLog,
        tracker: RunTracker,
    ) -> None:
        self.config = config
        self.tasks = tasks
        self.queue = queue
        self.pool = pool
        self.buffer = buffer
        self.policy = policy
        self.limits = limits
        self.completed_steps = completed_steps
        self.log = log
        self.tracker = tracker
        self.in_flight: dict[str, _Flight] = {}
        self.crash: BaseException | None = None
        self.wake = asyncio.Event()
        self.generating: asyncio.Task[None] | None = None
        self.lost_in_a_row = 0
        self.lost: Counter[str] = Counter()

    def start(self) -> None:
        self.generating = asyncio.create_task(self._generate())

    def advance(self, completed_steps: int) -> None:
        """A step is complete: more groups may start."""
        self.completed_steps = completed_steps
        self.wake.set()

    async def stop(self) -> None:
        """Cancels everything under way."""
        tasks = [flight.task for flight in self.in_flight.values()] + [self.generating]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def next_groups(self) -> dict[str, list[Trajectory]] | None:
        """The groups of the next step; None when there will be no more. Raises what ended generating or playing."""
        training = self.config.training
        ledger = self.queue.ledger
        while True:
            assert self.generating is not None
            if self.generating.done():
                self.generating.result()
            if (error := self.crash or self.pool.failure) is not None:
                raise error
            await self._give_up_stragglers()
            for group_id, age in (await ask("The buffer", self.buffer.sweep.remote(self.completed_steps))).items():
                ledger.drop(group_id, DropReason.STALE)
                self.log.say(f"group {group_id} is dropped: age {age} is over staleness.max_steps_off_policy")
            # Asked in this order: what is put in between is then counted.
            finished = not self.in_flight and not ledger.summary()["pending"]
            ready = await ask("The buffer", self.buffer.size.remote())
            count = min(training.global_batch_size, ready) if finished else training.global_batch_size
            if finished and not ready:
                return None
            if ready >= count and not self._urgent():
                return await ask("The buffer", self.buffer.take.remote(count, self.completed_steps))
            await asyncio.sleep(READY_POLL_S)

    def _urgent(self) -> list[str]:
        """Groups under way that would be too old for the step after the next: the next one waits for them."""
        last_chance = self.completed_steps - self.policy.max_steps_off_policy
        return [group_id for group_id, flight in self.in_flight.items() if flight.version <= last_chance]

    async def _give_up_stragglers(self) -> None:
        limit = self.config.training.straggler_timeout_s
        for group_id in self._urgent():
            flight = self.in_flight.get(group_id)  # it may have ended while another was given up
            if flight is None or flight.task is None or not flight.playing:
                continue
            if flight.awaited_since is None:
                flight.awaited_since = time.monotonic()
            if time.monotonic() - flight.awaited_since <= limit:
                continue
            flight.task.cancel()
            await asyncio.gather(flight.task, return_exceptions=True)
            if flight.task.cancelled():
                why = f"a step waited over training.straggler_timeout_s={limit:g} s for it"
                self._lose(group_id, DropReason.STRAGGLER, [DropReason.STRAGGLER.value], why)

    async def _generate(self) -> None:
        """Starts groups as fast as the staleness bound and the workers allow."""
        size = self.config.training.group_size
        while True:
            self.wake.clear()
            while (oldest := self._oldest_admissible()) is not None:
                version = self.pool.version_with_room(size, oldest)
                if version is None:
                    break
                tickets = self.queue.take(min(self._allowed(version), self.pool.room(size)))
                if not tickets:
                    break
                for ticket in tickets:
                    flight = _Flight(min(version, self.completed_steps))
                    self.in_flight[ticket.group_id] = flight
                    flight.task = asyncio.create_task(self._play(ticket, flight))
                    flight.task.add_done_callback(self._played)
                    await asyncio.sleep(0)  # lets the pool count the group before the next is considered
            try:
                await within(POLL_S, self.wake.wait())
            except TimeoutError:
                await self.pool.refresh()

    def _useful(self) -> int:
        """How many more groups the remaining steps could train."""
        training = self.config.training
        left = (training.max_steps - self.completed_steps) * training.global_batch_size
        return max(0, left - self.queue.ledger.num_open)

    def _oldest_admissible(self) -> int | None:
        """The oldest version that a group may start from now; None when none may start."""
        if not self._useful():
            return None
        return self.policy.oldest_admissible(self.completed_steps, self.queue.ledger.num_open)

    def _allowed(self, version: int) -> int:
        seen = min(version, self.completed_steps)
        admissible = self.policy.admissible(self.completed_steps, self.queue.ledger.num_open, seen)
        return min(admissible, self._useful())

    def _played(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash = self.crash or error

    async def _play(self, ticket: Ticket, flight: _Flight) -> None:
        group_id, task = ticket.group_id, self.tasks[ticket.task_id]
        try:
            size = self.config.training.group_size
            group = await self.pool.run_group(group_id, task, size, self.limits, flight.version)
            flight.playing = False
            usable = [played for played in group if not played.outcome.is_infrastructure_failure]
            lost = [played for played in group if played.outcome.is_infrastructure_failure]
            rewards: list[Any] = [played.reward for played in usable]  # never None: these were played to an end
            for played in lost:
                self.tracker.count(f"infrastructure/{played.outcome.value}")
            if len(usable) < 2:
                first = lost[0]
                why = f"{first.outcome.value}: {first.error}"
                self._lose(group_id, DropReason.INFRASTRUCTURE, [played.outcome.value for played in lost], why)
            elif not any(played.num_sampled for played in usable):
                named = ", ".join(played.trajectory_id for played in usable[:3])
                outcomes = [played.outcome.value for played in usable]
                self._lose(group_id, DropReason.NO_TOKENS, outcomes, f"trajectories {named}: {NO_TOKENS}")
            else:
                self.lost_in_a_row = 0
                self.lost.clear()
                self.queue.observe(ticket, [None if p.outcome.is_policy_failure else p.reward for p in usable])
                self._leave_out(usable, rewards)
                if self._is_flat(usable):
                    # Its place is taken by another, since a dropped group no longer counts as open.
                    self.queue.ledger.drop(group_id, DropReason.NO_SIGNAL)
                else:
                    await ask("The buffer", self.buffer.put.remote(group_id, usable))
                    self.queue.ledger.finish(group_id)
        finally:
            self.in_flight.pop(group_id, None)
            self.wake.set()

    def _is_flat(self, group: list[Trajectory]) -> bool:
        """Whether such groups are dropped and this is one, by its advantages: rewards that differ may still give none."""
        if not self.config.training.drop_groups_without_signal:
            return False
        advantage = self.config.algorithm.advantage
        return not has_signal(group, advantage.name, AdvantageSettings(**advantage.model_dump(exclude={"name"})))

    def _leave_out(self, group: list[Trajectory], rewards: list[float]) -> None:
        """Marks what `training.trained_per_group` leaves out of training."""
        chosen = most_varied(rewards, self.config.training.trained_per_group or len(group))
        for place, played in enumerate(group):
            played.left_out = place not in chosen

    def _lose(self, group_id: str, reason: DropReason, outcomes: list[str], why: str) -> None:
        """Drops a group of which nothing can be trained. Raises when that happens to group after group."""
        self.queue.ledger.drop(group_id, reason)
        self.log.say(f"group {group_id} is dropped: {why}")
        self.lost_in_a_row += 1
        self.lost.update(outcomes)
        # All that can be open twice over: a service that restarts loses what is open once.
        if self.lost_in_a_row < 2 * self.policy.max_open_groups:
            return
        counted = ", ".join(f"{count} {outcome}" for outcome, count in self.lost.most_common())
        message = f"{self.lost_in_a_row} groups in a row gave nothing to train on ({counted}): {why}"
        raise LearnerError(message) if reason is DropReason.NO_TOKENS else ClusterError(message)
