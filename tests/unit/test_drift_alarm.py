"""The alarm on a sampler that no longer runs the learner's weights, and what it must not ring for."""

from __future__ import annotations

import pytest
import torch

from rl_cluster.algorithms.objective import ObjectiveSettings, objective
from rl_cluster.algorithms.types import LossInputs
from rl_cluster.errors import SamplerDriftError
from rl_cluster.learning.drift_alarm import check_drift
from rl_cluster.learning.policy import PolicyInputs
from rl_cluster.learning.update_metrics import UpdateSums
from rl_cluster.sequences.row import MIXED_VERSIONS


def metrics(versions: list[int], gaps: list[float], current: int = 4) -> dict[str, float]:
    """The metrics of an update whose learner differs by `gaps` from what the tokens' samplers recorded."""
    count = len(versions)
    sampler = torch.full((count,), -1.0)
    now = sampler + torch.tensor(gaps)
    zeros, index = torch.zeros(count), torch.zeros(count, dtype=torch.long)
    inputs = PolicyInputs(
        prefix_ids=index[:0],
        suffix_ids=index[None],
        positions=index,
        token_of=index,
        target_ids=index,
        behaviour_logprobs=sampler,
        advantages=zeros + 1,
        weights=zeros + 1,
        versions=torch.tensor(versions),
        episodes=index,
    )
    found = objective(LossInputs(now, sampler, inputs.advantages), ObjectiveSettings("ppo"), zeros)
    sums = UpdateSums(current_version=current)
    sums.add(inputs, now, zeros, found, 0.0)
    return UpdateSums.metrics(*sums.as_tensors())


def test_check_drift_own_tokens_far_from_the_learner_ring() -> None:
    with pytest.raises(
        SamplerDriftError, match=r"On 2 tokens .* differ by 0\.300 on average \(learner\.drift_alarm=0\.05\)"
    ):
        check_drift(metrics([4, 4, 3], [0.2, -0.4, 0.0]), 0.05)


def test_check_drift_older_versions_and_mixed_keys_do_not_ring() -> None:
    found = metrics([3, 3, MIXED_VERSIONS, 4], [2.0, -1.0, 3.0, 0.001])
    check_drift(found, 0.05)
    assert found["learner/own_version_tokens"] == 1
    assert found["learner/sampler_gap_max"] == 3.0


def test_check_drift_no_token_of_the_own_version_is_silent() -> None:
    check_drift(metrics([3, 2], [2.0, 2.0]), 0.05)
