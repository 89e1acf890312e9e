"""The divergence under a correction, and the metrics of an update, each against numbers made with numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_cluster.algorithms.corrections import CorrectionSettings
from rl_cluster.algorithms.objective import ObjectiveSettings, objective
from rl_cluster.algorithms.types import LossInputs, LossSettings
from rl_cluster.learning.policy import PolicyInputs
from rl_cluster.learning.update_metrics import UpdateSums

NAN = float("nan")
LEARNER = np.array([-0.6, -2.1, -1.2, -0.7, -1.2, -0.3, -1.1])
SAMPLER = np.array([-1.0, -2.0, -0.5, -2.5, -0.7, NAN, NAN])
"""The engine reported no log-prob of the last two tokens."""

GAPS = np.array([0.4, -0.1, -0.7, 1.8, -0.5])
"""Learner minus sampler, of the tokens that have both."""

RATIOS = np.exp([*GAPS, 0.0, 0.0])
REFERENCE = np.array([-0.9, -1.6, -1.3, -1.5, -0.4, -0.5, -1.1])
ADVANTAGES = np.array([1.0, 1.0, -1.0, 1.0, -0.5, 0.5, -1.0])
CLIPPED = [1, 0, 1, 1, 1, 0, 0]
"""By ppo with 0.8 and 1.2: over 1.2 with an advantage over 0, under 0.8 with one under 0."""

ENTROPY = np.array([0.9, 0.1, 1.4, 0.5, 0.3, 2.0, 1.7])
VERSIONS = [4, 3, 4, 3, 3, 4, 4]
CURRENT_VERSION = 4


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def sums_of(tokens: list[int], settings: ObjectiveSettings, parts: int = 1, loss: float = 0.25) -> UpdateSums:
    """What one rank adds up over `tokens` of the batch, in `parts` micro-batches of `loss` each."""
    sums = UpdateSums(current_version=CURRENT_VERSION)
    for part in np.array_split(np.array(tokens), parts):
        index = torch.zeros(len(part), dtype=torch.long)
        inputs = PolicyInputs(
            prefix_ids=index[:0],
            suffix_ids=index[None],
            positions=index,
            target_ids=index,
            token_of=index,
            behaviour_logprobs=tensor(SAMPLER[part]),
            advantages=tensor(ADVANTAGES[part]),
            weights=torch.ones(len(part)),
            versions=torch.tensor(VERSIONS)[torch.from_numpy(part)],
            episodes=index,
        )
        now, entropy = tensor(LEARNER[part]), tensor(ENTROPY[part])
        reference = tensor(REFERENCE[part]) if settings.kl_coefficient else None
        given = LossInputs(now, inputs.behaviour_logprobs, inputs.advantages, reference_logprobs=reference)
        sums.add(inputs, now, entropy, objective(given, settings, entropy), loss)
    return sums


def metrics_of(tokens: list[int], settings: ObjectiveSettings | None = None, parts: int = 1) -> dict[str, float]:
    chosen = settings or ObjectiveSettings("ppo", LossSettings(0.8, 1.2))
    return UpdateSums.metrics(*sums_of(tokens, chosen, parts).as_tensors())


EXPECTED = {
    "loss": 0.25,
    "tokens": 7,
    "entropy": ENTROPY.sum() / 7,
    "ratio_mean": RATIOS.sum() / 7,
    "ratio_max": np.exp(1.8),
    "clip_fraction": 4 / 7,
    "missing_logprobs": 2,
    "sampler_gap_mean": 3.5 / 5,
    "sampler_gap_max": 1.8,
    "sampler_kl": (np.exp(GAPS) - 1 - GAPS).sum() / 5,
    "own_version_tokens": 2,
    "own_version_gap_mean": (0.4 + 0.7) / 2,
    "own_version_gap_max": 0.7,
    "reference_kl": 0,
    "correction_bounded": 0,
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_update_metrics_two_logprobs_missing_have_the_expected_value(name: str) -> None:
    """Means over what the sampler said leave out the tokens of which it said nothing; all others count every token."""
    assert metrics_of(list(range(7)))[f"learner/{name}"] == pytest.approx(EXPECTED[name], rel=1e-12)


def test_update_metrics_all_logprobs_known_are_means_over_all_tokens() -> None:
    found = metrics_of(list(range(5)))
    assert found["learner/sampler_gap_mean"] == pytest.approx(np.abs(GAPS).mean(), rel=1e-12)
    assert found["learner/sampler_kl"] == pytest.approx((np.exp(GAPS) - 1 - GAPS).mean(), rel=1e-12)
    assert found["learner/entropy"] == pytest.approx(ENTROPY[:5].mean(), rel=1e-12)
    assert found["learner/clip_fraction"] == pytest.approx(4 / 5, rel=1e-12)
    assert found["learner/ratio_mean"] == pytest.approx(RATIOS[:5].mean(), rel=1e-12)


def test_update_metrics_no_logprob_known_says_no_gap() -> None:
    found = metrics_of([5, 6])
    assert found["learner/missing_logprobs"] == 2
    for name in ("sampler_gap_mean", "sampler_gap_max", "sampler_kl"):
        assert found[f"learner/{name}"] == 0
    assert found["learner/ratio_mean"] == found["learner/ratio_max"] == 1


@pytest.mark.parametrize("ranks", [[[3, 0, 5], [6, 2, 4, 1]], [[5, 6], [0, 1, 2, 3, 4]]])
def test_update_metrics_micro_batches_and_ranks_add_up_to_those_of_one_pass(ranks: list[list[int]]) -> None:
    settings = ObjectiveSettings("ppo", LossSettings(0.8, 1.2))
    totals, maxima = zip(*(sums_of(tokens, settings, 2, loss=0.0625).as_tensors() for tokens in ranks), strict=True)
    together = UpdateSums.metrics(torch.stack(totals).sum(0), torch.stack(maxima).amax(0))
    assert together == pytest.approx(metrics_of(list(range(7))), rel=1e-12)


def test_update_metrics_reference_and_correction_are_means_over_all_tokens() -> None:
    """Truncated at 1.3: the ratios exp(0.4) and exp(1.8) are over it."""
    correction = CorrectionSettings("truncate", high=1.3)
    settings = ObjectiveSettings("policy_gradient", correction=correction, kl_coefficient=0.3, kl_estimator="k2")
    found = metrics_of(list(range(7)), settings, parts=3)
    assert found["learner/correction_bounded"] == pytest.approx(2 / 7, rel=1e-12)
    assert found["learner/reference_kl"] == pytest.approx(((LEARNER - REFERENCE) ** 2 / 2).sum() / 7, rel=1e-12)
    assert found["learner/missing_logprobs"] == 2


@pytest.mark.parametrize("loss", ["policy_gradient", "importance_sampling"])
@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        (CorrectionSettings("truncate", high=1.3), np.minimum(RATIOS, 1.3)),
        (CorrectionSettings("mask", low=0.6, high=2.0), np.array([1, 1, 0, 0, 1, 1, 1]) * RATIOS),
        (CorrectionSettings("truncate", "episode_mean", high=10.0), np.exp([-0.4 / 3] * 3 + [1.3 / 4] * 4)),
        (CorrectionSettings("truncate", "episode_sum", high=2.0), np.array([np.exp(-0.4)] * 3 + [2.0] * 4)),
    ],
    ids=["truncate", "mask", "episode_mean", "episode_sum"],
)
def test_objective_divergence_under_a_correction_is_weighed_by_it(
    loss: str, estimator: Any, correction: CorrectionSettings, weights: np.ndarray
) -> None:
    """Terms and gradient; the first three tokens are one episode. A missing log-prob counts as a gap of 0."""
    settings = ObjectiveSettings(loss, correction=correction, kl_coefficient=0.3, kl_estimator=estimator)
    now = tensor(LEARNER).requires_grad_()
    means, sizes = tensor([-0.4 / 3] * 3 + [1.3 / 4] * 4), tensor([3] * 3 + [4] * 4)
    given = LossInputs(
        now, tensor(SAMPLER), tensor(ADVANTAGES), episode_log_ratio=means, reference_logprobs=tensor(REFERENCE)
    )
    found = objective(given, settings, torch.zeros(7, dtype=torch.float64), sizes)
    found.terms.sum().backward()
    away = LEARNER - REFERENCE
    divergence = away**2 / 2 if estimator == "k2" else np.exp(-away) + away - 1
    slope = away if estimator == "k2" else 1 - np.exp(-away)
    plain = -ADVANTAGES * LEARNER if loss == "policy_gradient" else -ADVANTAGES
    assert now.grad is not None
    np.testing.assert_allclose(found.terms.detach(), weights * (plain + 0.3 * divergence), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(now.grad, weights * (0.3 * slope - ADVANTAGES), rtol=1e-12, atol=1e-12)
