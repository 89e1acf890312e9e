"""`TaskLedger`: which task group of which epoch is waiting, under way, trained or dropped.

Invariants:
- A group is one task in one epoch, with the id `epoch:task_id`; it is always in exactly one state.
- pending -> in_flight -> finished -> trained at a step; in_flight or finished -> dropped with one reason; in_flight or
  finished -> pending when its work was lost. Trained and dropped are final. Any other transition raises.
- At the end of the last epoch every group is trained once or dropped once.
- A saved ledger knows final states and unfinished groups by id, not by a position in the data, so that neither a slow
  group nor a dropped one makes others run twice or get lost on resume. What was unfinished is first in line again.
- The order of an epoch depends on the seed, the epoch and the task ids alone.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rl_cluster.errors import CheckpointError, ConfigError, DataError, DropReason

_FORMAT = 1


class GroupState(StrEnum):
    """Where a group stands."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    FINISHED = "finished"
    TRAINED = "trained"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Ticket:
    """Leave to run one group: `group_id` = f"{epoch}:{task_id}"."""

    group_id: str
    task_id: str
    epoch: int


class TaskLedger:
    """The account of all groups of a run; not thread-safe.

    Raises DataError for no tasks or a repeated id, ConfigError for max_epochs < 1.
    """

    def __init__(self, task_ids: Sequence[str], seed: int, max_epochs: int, shuffle: bool = True) -> None:
        if not task_ids:
            raise DataError("The training set has no tasks; check its path and its filters.")
        repeated = [task_id for task_id, count in Counter(task_ids).items() if count > 1]
        if repeated:
            raise DataError(
                f"Task id {repeated[0]!r} occurs more than once ({len(repeated)} such ids); make ids unique."
            )
        if max_epochs < 1:
            raise ConfigError(f"max_epochs={max_epochs} must be >= 1.")
        self._task_ids = list(task_ids)
        self._seed = seed
        self._max_epochs = max_epochs
        self._shuffle = shuffle
        self._states: dict[str, GroupState] = {}
        self._open: set[str] = set()
        self._serials: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._reasons: dict[str, DropReason] = {}
        self._returned: list[tuple[int, str]] = []
        self._fresh = self._all_tickets()

    def take(self, n: int) -> list[Ticket]:
        """Up to `n` groups, now in flight: returned ones first, then the next of the epochs; fewer at the very end."""
        tickets: list[Ticket] = []
        while len(tickets) < n and self._returned:
            tickets.append(_ticket(heapq.heappop(self._returned)[1]))
        while len(tickets) < n:
            numbered = next(self._fresh, None)
            if numbered is None:
                break
            serial, ticket = numbered
            if ticket.group_id not in self._states:
                self._serials[ticket.group_id] = serial
                tickets.append(ticket)
        for ticket in tickets:
            self._set(ticket.group_id, GroupState.IN_FLIGHT)
        return tickets

    def claim(self, group_ids: Iterable[str]) -> list[Ticket]:
        """These pending groups, now in flight, out of turn: a resumed run whose buffer has kept their episodes.

        RuntimeError, and no change at all, when one of them is not pending or named twice.
        """
        named = list(group_ids)
        for group_id, count in Counter(named).items():
            if count > 1 or self.state(group_id) is not GroupState.PENDING:
                raise RuntimeError(
                    f"Group {group_id!r} is {self.state(group_id).value} and named {count} times; "
                    "only a pending group can be taken, once."
                )
        taken = set(named)
        self._returned = [entry for entry in self._returned if entry[1] not in taken]
        heapq.heapify(self._returned)
        if not taken <= self._serials.keys():
            self._serials |= {
                ticket.group_id: serial for serial, ticket in self._all_tickets() if ticket.group_id in taken
            }
        for group_id in named:
            self._set(group_id, GroupState.IN_FLIGHT)
        return [_ticket(group_id) for group_id in named]

    def startable(self) -> dict[str, str]:
        """For each task that has one, its next group that never started, by task id; groups that wait first in line are
        not among them (see `returned_ids`).
        """
        found: dict[str, str] = {}
        for task_id in self._task_ids:
            for epoch in range(self._max_epochs):
                if (group_id := f"{epoch}:{task_id}") not in self._states:
                    found[task_id] = group_id
                    break
        return found

    def returned_ids(self) -> list[str]:
        """Groups that wait first in line because their work was lost or undone."""
        return [group_id for _, group_id in sorted(self._returned)]

    def finish(self, group_id: str) -> None:
        """All episodes of the group are there."""
        self._move(group_id, GroupState.FINISHED, {GroupState.IN_FLIGHT})

    def train(self, group_id: str, step: int) -> None:
        """The group was part of the completed training step `step`."""
        self._move(group_id, GroupState.TRAINED, {GroupState.FINISHED})
        self._steps[group_id] = step

    def drop(self, group_id: str, reason: DropReason) -> None:
        """The group will not be trained."""
        self._move(group_id, GroupState.DROPPED, {GroupState.IN_FLIGHT, GroupState.FINISHED})
        self._reasons[group_id] = reason

    def return_unfinished(self, group_ids: Iterable[str] | None = None) -> list[str]:
        """Put groups whose work was lost back in front of the line, in their first order; returns their ids.

        None means everything in flight. Named groups may be in flight or finished, all others raise RuntimeError.
        """
        if group_ids is None:
            group_ids = [key for key in self._open if self._states[key] is GroupState.IN_FLIGHT]
        returned = sorted(group_ids, key=lambda group_id: self._serials.get(group_id, -1))
        for group_id in returned:
            self._move(group_id, GroupState.PENDING, {GroupState.IN_FLIGHT, GroupState.FINISHED})
            heapq.heappush(self._returned, (self._serials[group_id], group_id))
        return returned

    def state(self, group_id: str) -> GroupState:
        """Where a group stands; RuntimeError for an id that is no group of this run."""
        if group_id not in self._states:
            self._require_known(group_id)
            return GroupState.PENDING
        return self._states[group_id]

    @property
    def num_open(self) -> int:
        """Groups in flight or finished: started, and neither trained nor dropped."""
        return len(self._open)

    @property
    def num_settled(self) -> int:
        """Groups trained or dropped."""
        return len(self._steps) + len(self._reasons)

    @property
    def is_exhausted(self) -> bool:
        """Whether every group of every epoch is trained or dropped."""
        return self.num_settled == len(self._task_ids) * self._max_epochs

    def summary(self) -> dict[str, Any]:
        """Counts by state (`total` is tasks times epochs) and, under `dropped_by_reason`, by reason; JSON-ready."""
        counts = Counter(self._states.values())
        total = len(self._task_ids) * self._max_epochs
        reasons = Counter(self._reasons.values())
        return {
            "total": total,
            "pending": total - len(self._states) + counts[GroupState.PENDING],
            "in_flight": counts[GroupState.IN_FLIGHT],
            "finished": counts[GroupState.FINISHED],
            "trained": counts[GroupState.TRAINED],
            "dropped": counts[GroupState.DROPPED],
            "dropped_by_reason": {reason.value: reasons[reason] for reason in DropReason if reasons[reason]},
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, of JSON types alone."""
        unfinished = [key for key in self._states if key not in self._steps and key not in self._reasons]
        return {
            "format": _FORMAT,
            "task_digest": _digest(self._task_ids),
            "seed": self._seed,
            "max_epochs": self._max_epochs,
            "shuffle": self._shuffle,
            "trained": dict(self._steps),
            "dropped": {group_id: reason.value for group_id, reason in self._reasons.items()},
            "unfinished": sorted(unfinished, key=self._serials.__getitem__),
        }

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], task_ids: Sequence[str], max_epochs: int | None = None
    ) -> TaskLedger:
        """The ledger as saved, with every unfinished group pending and first in line.

        `max_epochs` lengthens (or shortens) the run; None keeps the saved number. The order of `task_ids` may differ
        from the first run's, their set may not. Raises CheckpointError for another set or a malformed state.
        """
        try:
            if state["format"] != _FORMAT:
                raise CheckpointError(f"The ledger has format {state['format']}, this version reads {_FORMAT}.")
            if state["task_digest"] != _digest(task_ids):
                raise CheckpointError(
                    f"The {len(task_ids)} tasks given are not those of the checkpoint (digest {_digest(task_ids)[:12]} "
                    f"against {state['task_digest'][:12]}); resume with the same data, or start a new run."
                )
            ledger = cls(task_ids, state["seed"], max_epochs or state["max_epochs"], state["shuffle"])
            ledger._steps = {group_id: int(step) for group_id, step in state["trained"].items()}
            ledger._reasons = {group_id: DropReason(reason) for group_id, reason in state["dropped"].items()}
            unfinished = list(state["unfinished"])
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"The saved ledger is malformed ({error!r}); remove the newest checkpoint to resume from the one before."
            ) from error
        except ValueError as error:
            if isinstance(error, (CheckpointError, ConfigError, DataError)):
                raise
            raise CheckpointError(
                f"The saved ledger is malformed ({error}); remove the newest checkpoint to resume from the one before."
            ) from error
        ledger._restore(unfinished)
        return ledger

    def _restore(self, unfinished: list[str]) -> None:
        final = [*self._steps, *self._reasons]
        everything = [*final, *unfinished]
        if len(set(everything)) < len(everything):
            raise CheckpointError(
                "The saved ledger names a group in two states; remove the newest checkpoint to resume from the one before."
            )
        known = {ticket.group_id: serial for serial, ticket in self._all_tickets()}
        foreign = [group_id for group_id in everything if group_id not in known]
        if foreign:
            raise CheckpointError(
                f"The saved ledger names group {foreign[0]!r}, which is none of this run of {self._max_epochs} epochs; "
                "raise max_epochs to at least the saved number."
            )
        self._serials = {group_id: known[group_id] for group_id in everything}
        self._states = dict.fromkeys(self._steps, GroupState.TRAINED)
        self._states |= dict.fromkeys(self._reasons, GroupState.DROPPED)
        self._states |= dict.fromkeys(unfinished, GroupState.PENDING)
        self._returned = [(known[group_id], group_id) for group_id in unfinished]
        heapq.heapify(self._returned)

    def _all_tickets(self) -> Iterator[tuple[int, Ticket]]:
        serial = 0
        for epoch in range(self._max_epochs):
            order = self._task_ids
            if self._shuffle:
                order = sorted(self._task_ids)
                random.Random(f"{self._seed}:{epoch}").shuffle(order)
            for task_id in order:
                yield serial, Ticket(f"{epoch}:{task_id}", task_id, epoch)
                serial += 1

    def _move(self, group_id: str, target: GroupState, allowed: set[GroupState]) -> None:
        state = self.state(group_id)
        if state not in allowed:
            raise RuntimeError(
                f"Group {group_id!r} is {state.value} and cannot become {target.value}; "
                f"only a group that is {' or '.join(sorted(allowed))} can."
            )
        self._set(group_id, target)

    def _set(self, group_id: str, state: GroupState) -> None:
        self._states[group_id] = state
        if state in (GroupState.IN_FLIGHT, GroupState.FINISHED):
            self._open.add(group_id)
        else:
            self._open.discard(group_id)

    def _require_known(self, group_id: str) -> None:
        epoch, _, task_id = group_id.partition(":")
        if not epoch.isdigit() or int(epoch) >= self._max_epochs or task_id not in self._task_ids:
            raise RuntimeError(f"{group_id!r} is no group of this run; group ids come from `take`.")


def _ticket(group_id: str) -> Ticket:
    epoch, _, task_id = group_id.partition(":")
    return Ticket(group_id, task_id, int(epoch))


def _digest(task_ids: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(sorted(task_ids)).encode()).hexdigest()
