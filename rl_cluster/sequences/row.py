"""`TrainingRow`: one token sequence as the learner trains it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIXED_VERSIONS = -2
"""The weight version of a token that was sampled over keys and values of older weights than its own."""


@dataclass
class TrainingRow:
    """One row; all arrays have the same length T.

    token_ids [T] int32; loss_mask [T] bool, true on sampled tokens; behaviour_logprobs [T] float32 and weight_versions
    [T] int32, meaningful where the mask is true (0.0 and -1 elsewhere; MIXED_VERSIONS where no one version sampled); advantages [T] float32, 0 off the mask;
    turn_index [T] int16, the turn of the episode that a token belongs to (an observation counts to the turn it opens).
    """

    trajectory_id: str
    group_id: str
    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    behaviour_logprobs: npt.NDArray[np.float32]
    weight_versions: npt.NDArray[np.int32]
    advantages: npt.NDArray[np.float32]
    turn_index: npt.NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        return int(self.loss_mask.sum())
