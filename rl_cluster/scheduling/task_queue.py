"""`TaskQueue`: which groups start next, and whether a finished one is worth training.

Invariants: groups whose work was lost come first, in their old order; then the ledger's order, or the curriculum's where
there is one; every group still ends trained once or dropped once (see ledger.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.errors import CheckpointError
from rl_cluster.scheduling.curriculum import Curriculum
from rl_cluster.scheduling.ledger import TaskLedger, Ticket


class TaskQueue:
    """The ledger with its optional curriculum and filter."""

    def __init__(self, ledger: TaskLedger, curriculum: Curriculum | None, drop_without_signal: bool) -> None:
        self.ledger = ledger
        self.curriculum = curriculum
        self.drop_without_signal = drop_without_signal

    def take(self, n: int) -> list[Ticket]:
        """Up to `n` groups, now in flight; fewer at the very end."""
        if self.curriculum is None:
            return self.ledger.take(n)
        tickets = self.ledger.take(min(n, len(self.ledger.returned_ids())))
        startable = self.ledger.startable()
        chosen = self.curriculum.choose(list(startable), n - len(tickets))
        return [*tickets, *self.ledger.claim(startable[task_id] for task_id in chosen)]

    def is_worth_training(self, ticket: Ticket, rewards: Sequence[float]) -> bool:
        """Takes note of a finished group's rewards; False when all are equal and such groups are dropped.

        The place of a dropped group is taken by another, since it no longer counts as open.
        """
        if self.curriculum is not None:
            self.curriculum.observe(ticket.task_id, rewards)
        return not self.drop_without_signal or min(rewards) < max(rewards)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, of JSON types alone."""
        return {
            "ledger": self.ledger.state_dict(),
            "curriculum": None if self.curriculum is None else self.curriculum.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], task_ids: Sequence[str], max_epochs: int) -> None:
        """Goes on where the saved queue stood. Raises CheckpointError when it does not fit."""
        try:
            ledger, curriculum = state["ledger"], state["curriculum"]
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"The saved task queue is malformed ({error!r}); remove the newest checkpoint to resume from the one before."
            ) from error
        self.ledger = TaskLedger.from_state_dict(ledger, task_ids, max_epochs)
        if self.curriculum is not None and curriculum is not None:
            self.curriculum.load_state_dict(curriculum)
