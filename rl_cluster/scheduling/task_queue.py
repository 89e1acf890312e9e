"""`TaskQueue`: which groups start next.

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
    """The ledger with its optional curriculum."""

    def __init__(self, ledger: TaskLedger, curriculum: Curriculum | None) -> None:
        self.ledger = ledger
        self.curriculum = curriculum

    def take(self, n: int) -> list[Ticket]:
        """Up to `n` groups, now in flight; fewer at the very end."""
        if self.curriculum is None:
            return self.ledger.take(n)
        tickets = self.ledger.take(min(n, len(self.ledger.returned_ids())))
        startable = self.ledger.startable()
        chosen = self.curriculum.choose(list(startable), n - len(tickets))
        return [*tickets, *self.ledger.claim(startable[task_id] for task_id in chosen)]

    def observe(self, ticket: Ticket, scores: Sequence[float | None]) -> None:
        """Takes note of a finished group's rewards, None for an episode that failed."""
        if self.curriculum is not None:
            self.curriculum.observe(ticket.task_id, scores)

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
