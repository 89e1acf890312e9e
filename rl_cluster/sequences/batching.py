"""Rows to micro-batches of bounded cost, and micro-batches to ranks.

The samples of a task begin alike: the same prompt, and often the same first calls and answers to them. What the rows of a
micro-batch have in common is computed once, trained tokens included. Costs are counted in token positions of one forward pass: a micro-batch of n rows whose first `prefix_len` ids are the
same computes them once and then n suffixes padded to the longest, so it costs `prefix_len + n * longest suffix`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rl_cluster.errors import LearnerError
from rl_cluster.sequences.row import TrainingRow

MIN_SHARED_PREFIX = 16
"""A common prefix shorter than this is not worth a forward pass of its own."""

LAUNCH_COST = 256
"""One more forward and backward pass is worth about this many padded positions."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows that go through the model together. At least one row.

    prefix_len: leading ids that all rows have in common and that are computed once; 0 when nothing is shared. Every row is
    longer than that.
    """

    rows: list[TrainingRow]
    prefix_len: int

    @property
    def suffix_len(self) -> int:
        """Length of the longest row without the prefix: the width that suffixes are padded to."""
        return max(len(row) for row in self.rows) - self.prefix_len

    @property
    def cost(self) -> int:
        """Token positions of one forward pass, padding included."""
        return self.prefix_len + len(self.rows) * self.suffix_len

    @property
    def num_trained(self) -> int:
        return sum(row.num_trained for row in self.rows)


def longest_common_prefix(sequences: Sequence[npt.NDArray[np.integer]]) -> int:
    """How many leading ids all the 1-D sequences have in common; 0 for no sequences, its length for a single one."""
    if not sequences:
        return 0
    length = min(len(sequence) for sequence in sequences)
    first = sequences[0]
    for sequence in sequences[1:]:
        different = np.flatnonzero(first[:length] != sequence[:length])
        if len(different):
            length = int(different[0])
    return length


def make_micro_batches(
    rows: Sequence[TrainingRow], max_tokens: int, share_prefix: bool, launch_cost: int = LAUNCH_COST
) -> list[MicroBatch]:
    """Pack every row into exactly one micro-batch whose cost is at most `max_tokens`; deterministic.

    A single row longer than the budget gets a micro-batch of its own. Rows are sorted so that those of one group, and of
    them those that begin alike, are neighbours; without `share_prefix` length alone decides. Two
    neighbours are joined when the budget allows it and the padding (or the loss of a longer common prefix) costs no
    more than `launch_cost` positions, the price of one more pass. A bounded cost bounds the padded suffixes too.

    Raises LearnerError for a budget under 1 or an empty row.
    """
    if max_tokens < 1:
        raise LearnerError(f"max_tokens={max_tokens} leaves no room for a row; give at least the length of one row.")
    for row in rows:
        if len(row) == 0:
            raise LearnerError(f"A row of trajectory {row.trajectory_id!r} is empty; drop it before batching.")
    batches: list[_Packing] = []
    for row in _neighbours_first(rows, share_prefix):
        single = _Packing.of(row)
        joined = batches[-1].joined(single, share_prefix) if batches else None
        if (
            joined is not None
            and joined.cost <= max_tokens
            and joined.cost <= batches[-1].cost + single.cost + launch_cost
        ):
            batches[-1] = joined
        else:
            batches.append(single)
    return [MicroBatch(batch.rows, batch.prefix_len) for batch in batches]


def micro_batches_of_ranks(
    rows: Sequence[TrainingRow], max_tokens: int, share_prefix: bool, world_size: int
) -> list[list[MicroBatch | None]]:
    """Micro-batches of at most `max_tokens`, shared out over ranks as `partition_over_ranks` does; deterministic.

    Where full ones would leave ranks idle, smaller ones are packed: of a few budgets the one whose busiest rank has the least
    to do, each pass counted with `LAUNCH_COST`.
    """
    longest, total = max(map(len, rows), default=0), sum(map(len, rows))
    budgets = [max_tokens]
    if world_size > 1 and rows:
        for shares in range(world_size, 5 * world_size, world_size):
            budgets += [max(longest, -(-total // shares)), longest * -(-len(rows) // shares)]

    def shared(budget: int) -> list[list[MicroBatch | None]]:
        return partition_over_ranks(make_micro_batches(rows, budget, share_prefix), world_size)

    def busiest(ranks: list[list[MicroBatch | None]]) -> int:
        return max(sum(batch.cost + LAUNCH_COST for batch in mine if batch) for mine in ranks)

    return min((shared(budget) for budget in dict.fromkeys(budgets) if budget <= max_tokens), key=busiest)


Item = TypeVar("Item", TrainingRow, MicroBatch)


def partition_over_ranks(items: Sequence[Item], world_size: int) -> list[list[Item | None]]:
    """Share micro-batches (or rows) out over ranks, balanced by cost; result [world_size][slots], deterministic.

    The costliest item goes to the least loaded rank. All ranks get the same number of slots, sorted by falling cost, so
    that they make the same number of forward and backward calls; a rank that ran out gets None (a dummy pass whose
    gradient is zero), since a rank that skips a collective hangs the others.

    Raises LearnerError for a world size under 1.
    """
    if world_size < 1:
        raise LearnerError(f"world_size={world_size} has no rank to give rows to; give at least 1.")
    shares: list[list[Item | None]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for item in sorted(items, key=_item_cost, reverse=True):
        rank = min(range(world_size), key=lambda candidate: (loads[candidate], candidate))
        shares[rank].append(item)
        loads[rank] += _item_cost(item)
    slots = max(len(share) for share in shares)
    return [share + [None] * (slots - len(share)) for share in shares]


def _item_cost(item: TrainingRow | MicroBatch) -> int:
    return item.cost if isinstance(item, MicroBatch) else len(item)


def _neighbours_first(rows: Sequence[TrainingRow], share_prefix: bool) -> list[TrainingRow]:
    if not share_prefix:
        return sorted(rows, key=lambda row: (-len(row), row.group_id, row.trajectory_id))
    group_longest: dict[str, int] = {}
    for row in rows:
        group_longest[row.group_id] = max(group_longest.get(row.group_id, 0), len(row))

    def order(row: TrainingRow) -> tuple[int, str, bytes, str]:
        # As bytes with the most significant first, ids compare as the ids do: neighbours have the longest prefix in common.
        return -group_longest[row.group_id], row.group_id, row.token_ids.astype(">u4").tobytes(), row.trajectory_id

    return sorted(rows, key=order)


@dataclass(frozen=True)
class _Packing:
    """A micro-batch in the making. `common`: the common prefix that leaves each row one id, before the minimum is applied."""

    rows: list[TrainingRow]
    common: int
    longest: int

    @classmethod
    def of(cls, row: TrainingRow) -> _Packing:
        return cls([row], len(row) - 1, len(row))

    @property
    def prefix_len(self) -> int:
        # A single row shares with nobody: splitting its forward in two would only cost time.
        return self.common if len(self.rows) > 1 and self.common >= MIN_SHARED_PREFIX else 0

    @property
    def cost(self) -> int:
        return self.prefix_len + len(self.rows) * (self.longest - self.prefix_len)

    def joined(self, single: _Packing, share_prefix: bool) -> _Packing:
        common = 0
        if share_prefix:
            limit = min(self.common, single.common)
            common = longest_common_prefix([self.rows[0].token_ids[:limit], single.rows[0].token_ids[:limit]])
        return _Packing([*self.rows, *single.rows], common, max(self.longest, single.longest))
