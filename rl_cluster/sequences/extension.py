"""Trajectories to training rows by the sequence-extension rule.

A turn whose prompt starts with all tokens so far (prompt, samples and observations) continues the row: only the new
observation (mask 0) and the sampled ids (mask 1) are appended. Any other prompt opens a new row with the whole prompt
and is counted, so that nothing is lost and nothing is silently masked. Ids are copied, never decoded and encoded again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import LearnerError
from rl_cluster.sequences.row import MIXED_VERSIONS, TrainingRow


class TrajectoryRows(NamedTuple):
    """The rows of one trajectory in the order of its turns, and how many turns broke the prefix."""

    rows: list[TrainingRow]
    num_broken_prefixes: int


def rows_from_trajectory(trajectory: Trajectory) -> TrajectoryRows:
    """The training rows of one episode, advantages all 0; each sampled token stands in exactly one row.

    A turn that sampled nothing has nothing to train: it neither opens nor lengthens a row. Row lengths are not capped.

    Raises LearnerError, naming the trajectory and the turn, when the arrays of a turn differ in length or its prompt is
    empty (the first sampled token would have no position that predicts it).
    """
    rows: list[_OpenRow] = []
    for index, turn in enumerate(trajectory.turns):
        _validate(trajectory.trajectory_id, index, turn)
        if not turn.sampled_ids:
            continue
        if not rows or not rows[-1].is_prefix_of(turn.prompt_ids):
            rows.append(_OpenRow())
        rows[-1].extend(index, turn)
    return TrajectoryRows([row.close(trajectory) for row in rows], max(len(rows) - 1, 0))


def set_advantages(rows: Iterable[TrainingRow], by_trajectory: Mapping[str, npt.NDArray[np.float64]]) -> None:
    """Give every sampled token of every row, in place, its advantage; all other positions get 0.

    `by_trajectory` holds one value for each sampled token of a trajectory, in the order they were sampled; the rows of
    a trajectory come in the order of its turns. Raises LearnerError when a trajectory has no advantages, or not as many
    as its rows have sampled tokens.
    """
    used: dict[str, int] = {}
    for row in rows:
        if row.trajectory_id not in by_trajectory:
            raise LearnerError(
                f"Trajectory {row.trajectory_id!r} has rows but no advantage; compute one per trajectory."
            )
        first = used.get(row.trajectory_id, 0)
        used[row.trajectory_id] = first + row.num_trained
        values = by_trajectory[row.trajectory_id][first : first + row.num_trained]
        if len(values) == row.num_trained:
            row.advantages = np.zeros(len(row), dtype=np.float32)
            row.advantages[row.loss_mask] = values
    for trajectory_id, count in used.items():
        if count != len(by_trajectory[trajectory_id]):
            raise LearnerError(
                f"Trajectory {trajectory_id!r} has {count} sampled tokens in its rows but "
                f"{len(by_trajectory[trajectory_id])} advantages; give one for each."
            )


def _validate(trajectory_id: str, index: int, turn: Turn) -> None:
    lengths = (len(turn.sampled_ids), len(turn.logprobs), len(turn.weight_versions))
    if len(set(lengths)) > 1:
        raise LearnerError(
            f"Turn {index} of trajectory {trajectory_id!r} has {lengths[0]} sampled ids, {lengths[1]} log-probs and "
            f"{lengths[2]} weight versions; the rollout must record one of each per sampled token."
        )
    if turn.sampled_ids and not turn.prompt_ids:
        raise LearnerError(
            f"Turn {index} of trajectory {trajectory_id!r} has an empty prompt; record the ids it was sent."
        )


class _OpenRow:
    """Collects the pieces of a row; they are joined once, when it is closed."""

    def __init__(self) -> None:
        self.ids: array[int] = array("i")
        self.pieces: list[tuple[int, int, Turn]] = []

    def is_prefix_of(self, prompt_ids: Sequence[int]) -> bool:
        return prompt_ids[: len(self.ids)] == self.ids

    def extend(self, index: int, turn: Turn) -> None:
        self.pieces.append((index, len(turn.prompt_ids) - len(self.ids), turn))
        self.ids = array("i", turn.prompt_ids)
        self.ids.extend(turn.sampled_ids)

    def close(self, trajectory: Trajectory) -> TrainingRow:
        length, end = len(self.ids), 0
        mask = np.zeros(length, dtype=np.bool_)
        logprobs = np.zeros(length, dtype=np.float32)
        versions = np.full(length, -1, dtype=np.int32)
        turns = np.empty(length, dtype=np.int16)
        for index, num_new, turn in self.pieces:
            start, first = end, end + num_new
            end = first + len(turn.sampled_ids)
            mask[first:end] = True
            logprobs[first:end] = turn.logprobs
            versions[first:end] = turn.weight_versions
            # Versions only grow, so the tokens after an update under way are the last ones.
            versions[end - turn.mixed_cache_tokens : end] = MIXED_VERSIONS
            turns[start:end] = index
        return TrainingRow(
            trajectory_id=trajectory.trajectory_id,
            group_id=trajectory.group_id,
            token_ids=np.array(self.ids, dtype=np.int32),
            loss_mask=mask,
            behaviour_logprobs=logprobs,
            weight_versions=versions,
            advantages=np.zeros(length, dtype=np.float32),
            turn_index=turns,
        )
