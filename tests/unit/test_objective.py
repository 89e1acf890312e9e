"""What is minimised: losses over episodes, corrections, divergence and entropy, against the formula sheet and float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rl_cluster.algorithms.corrections import CorrectionSettings, correction_weights
from rl_cluster.algorithms.kl import kl_estimate
from rl_cluster.algorithms.losses import default_settings, get_loss
from rl_cluster.algorithms.objective import Objective, ObjectiveSettings, objective
from rl_cluster.algorithms.types import LossInputs, LossSettings
from rl_cluster.errors import ConfigError, LearnerError
from rl_cluster.learning.episode_ratios import episode_log_ratios
from rl_cluster.learning.policy import PolicyInputs
from tests.unit.test_losses import ADVANTAGES, BEHAVIOUR, CURRENT, RATIOS

EPISODE = [0, 0, 0, 1, 1]
PROXIMAL = [-0.9, -2.0, -0.8, -1.2, -0.7]


def vector(values: list[float], grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def episode_means(now: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean log-ratio and number of tokens of the episode of each token."""
    gaps = (now.detach() - vector(BEHAVIOUR)).numpy()
    sizes = np.bincount(EPISODE)
    means = np.bincount(EPISODE, weights=gaps) / sizes
    return torch.from_numpy(means[EPISODE]), torch.from_numpy(sizes[EPISODE].astype(float))


def measured_means(behaviour: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as the learner measures it before a step."""
    zeros, index = torch.zeros(5), torch.zeros(5, dtype=torch.long)
    inputs = PolicyInputs(
        prefix_ids=index[:0],
        suffix_ids=index[None],
        positions=index,
        target_ids=index,
        token_of=index,
        behaviour_logprobs=behaviour,
        advantages=zeros,
        weights=zeros,
        versions=index,
        episodes=torch.tensor(EPISODE),
    )
    means, sizes = episode_log_ratios(lambda passed: (vector(CURRENT), zeros), [inputs], 2, 1, torch.device("cpu"))
    return means[EPISODE], sizes[EPISODE]


def run(settings: ObjectiveSettings, sign: float = 1.0, **more: Any) -> tuple[Objective, torch.Tensor]:
    """The objective on the golden tokens, and the gradient of its sum."""
    current = vector(CURRENT, grad=True)
    means, sizes = episode_means(current)
    entropy = more.pop("entropy", torch.zeros(5, dtype=torch.float64))
    inputs = LossInputs(current, vector(BEHAVIOUR), sign * vector(ADVANTAGES), **{"episode_log_ratio": means, **more})
    result = objective(inputs, settings, entropy, sizes)
    result.terms.sum().backward()
    assert current.grad is not None
    return result, current.grad


def plain(name: str, **more: Any) -> ObjectiveSettings:
    return ObjectiveSettings(name, default_settings(name), **more)


@pytest.mark.parametrize(("sign", "expected"), [(1.0, 0.041299), (-1.0, 0.249750)])
def test_gspo_golden_episodes_match_formula_sheet(sign: float, expected: float) -> None:
    result, gradient = run(plain("gspo"), sign)
    weights = vector([1 / 6] * 3 + [1 / 4] * 2)
    assert float((weights * result.terms.detach()).sum()) == pytest.approx(expected, abs=5e-7)
    scales = vector([0.875173] * 3 + [1.915541] * 2)
    kept = vector([0.0 if flag else 1.0 for flag in result.loss.clipped])
    np.testing.assert_allclose(gradient, -sign * scales * vector(ADVANTAGES) * kept, atol=5e-7)
    assert result.loss.clipped.tolist() == ([False] * 5 if sign > 0 else [True] * 5)


def test_gspo_gradient_equals_that_of_the_episodes_own_ratio() -> None:
    """Against -min(s A, clip(s) A) with s inside the graph, as the paper writes it."""
    current = vector(CURRENT, grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for rows, advantage in ((slice(0, 3), 1.0), (slice(3, 5), -0.5)):
        s = torch.exp((current - vector(BEHAVIOUR))[rows].mean())
        total = total - torch.minimum(s * advantage, torch.clamp(s, 1 - 3e-4, 1 + 4e-4) * advantage) / 2
    (expected,) = torch.autograd.grad(total, current)
    again = vector(CURRENT, grad=True)
    means, _ = episode_means(again)
    terms = get_loss("gspo")(
        LossInputs(again, vector(BEHAVIOUR), vector(ADVANTAGES), episode_log_ratio=means), default_settings("gspo")
    ).terms
    (gradient,) = torch.autograd.grad((vector([1 / 6] * 3 + [1 / 4] * 2) * terms).sum(), again)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


def test_gspo_without_episode_ratios_says_so() -> None:
    with pytest.raises(LearnerError, match="gspo needs the log-ratio of whole episodes"):
        get_loss("gspo")(LossInputs(vector(CURRENT), vector(BEHAVIOUR), vector(ADVANTAGES)), LossSettings())


def test_truncated_correction_of_policy_gradient_matches_golden() -> None:
    settings = plain("policy_gradient", correction=CorrectionSettings("truncate", high=2.0))
    result, gradient = run(settings)
    np.testing.assert_allclose(result.terms.detach(), [0.895095, 1.900159, 0.595902, -0.7, -0.363918], atol=5e-7)
    np.testing.assert_allclose(gradient, [-1.491825, -0.904837, -0.496585, 1.0, 0.303265], atol=5e-7)
    assert result.sums["correction_bounded"] == 1


def test_masked_correction_of_policy_gradient_matches_golden() -> None:
    result, gradient = run(plain("policy_gradient", correction=CorrectionSettings("mask")))
    np.testing.assert_allclose(result.terms.detach(), [0.895095, 1.900159, 0, 0, -0.363918], atol=5e-7)
    np.testing.assert_allclose(gradient, [-1.491825, -0.904837, 0, 0, 0.303265], atol=5e-7)


def test_decoupled_ppo_matches_golden() -> None:
    settings = plain("ppo", correction=CorrectionSettings("truncate", high=2.0))
    result, _ = run(settings, proximal_logprobs=vector(PROXIMAL))
    expected = [-1.326205, -0.904837, -0.496585, 1.648721, 0.4]
    np.testing.assert_allclose(result.terms.detach(), expected, atol=5e-7)


def test_correction_never_multiplies_a_ratio_taken_against_the_sampler() -> None:
    """With a correction and no separate proximal policy the loss's own ratio is 1: the weight alone is the ratio."""
    result, gradient = run(plain("importance_sampling", correction=CorrectionSettings("truncate", high=1e6)))
    assert result.loss.ratio.tolist() == [1.0] * 5
    np.testing.assert_allclose(gradient, -vector(RATIOS) * vector(ADVANTAGES), atol=5e-7)


@pytest.mark.parametrize(
    ("level", "expected"), [("episode_mean", [0.875173, 1.915541]), ("episode_sum", [0.670320, 3.669297])]
)
def test_correction_level_of_episodes_matches_golden_ratios(level: Any, expected: list[float]) -> None:
    means, sizes = episode_means(vector(CURRENT))
    settings = CorrectionSettings("truncate", level, high=10.0)
    weights, bounded = correction_weights(vector(CURRENT), vector(BEHAVIOUR), settings, means, sizes)
    np.testing.assert_allclose(weights, [expected[0]] * 3 + [expected[1]] * 2, atol=5e-7)
    assert not bounded.any()


def test_correction_missing_behaviour_counts_as_on_policy() -> None:
    weights, _ = correction_weights(vector(CURRENT), vector(BEHAVIOUR) * math.nan, CorrectionSettings("mask"))
    assert weights.tolist() == [1.0] * 5


def one_missing() -> torch.Tensor:
    behaviour = vector(BEHAVIOUR)
    behaviour[1] = math.nan
    return behaviour


def test_episode_ratios_missing_logprobs_count_as_unchanged_tokens() -> None:
    for behaviour, expected in ((one_missing(), [-0.1, 0.65]), (vector(BEHAVIOUR) * math.nan, [0.0, 0.0])):
        means, sizes = measured_means(behaviour)
        np.testing.assert_allclose(means, [expected[0]] * 3 + [expected[1]] * 2, atol=1e-12)
        assert sizes.tolist() == [3, 3, 3, 2, 2]


def test_gspo_missing_logprob_leaves_its_episode_a_ratio_and_is_counted() -> None:
    current, (means, sizes) = vector(CURRENT, grad=True), measured_means(one_missing())
    inputs = LossInputs(current, one_missing(), vector(ADVANTAGES), episode_log_ratio=means)
    found = objective(inputs, plain("gspo"), torch.zeros(5, dtype=torch.float64), sizes)
    found.terms.sum().backward()
    ratios = np.exp([-0.1] * 3 + [0.65] * 2)
    assert found.loss.num_missing_behaviour == 1
    np.testing.assert_allclose(found.loss.ratio, ratios, atol=1e-12)
    assert current.grad is not None
    np.testing.assert_allclose(current.grad, -ratios * ADVANTAGES, atol=1e-12)


@pytest.mark.parametrize(("level", "exponents"), [("episode_mean", [-0.1, 0.65]), ("episode_sum", [-0.3, 1.3])])
def test_correction_level_of_episodes_missing_logprob_counts_as_unchanged_and_is_counted(
    level: Any, exponents: list[float]
) -> None:
    current, (means, sizes) = vector(CURRENT, grad=True), measured_means(one_missing())
    inputs = LossInputs(current, one_missing(), vector(ADVANTAGES), episode_log_ratio=means)
    settings = plain("policy_gradient", correction=CorrectionSettings("truncate", level, high=10.0))
    found = objective(inputs, settings, torch.zeros(5, dtype=torch.float64), sizes)
    found.terms.sum().backward()
    weights = np.exp([exponents[0]] * 3 + [exponents[1]] * 2)
    assert found.loss.num_missing_behaviour == 1
    assert current.grad is not None
    np.testing.assert_allclose(current.grad, -weights * ADVANTAGES, atol=1e-12)


@pytest.mark.parametrize("bad", [("trim", "token", 0.5, 2.0), ("mask", "turn", 0.5, 2.0), ("mask", "token", 2.0, 0.5)])
def test_correction_settings_impossible_are_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="correction"):
        CorrectionSettings(*bad)


def test_objective_gspo_with_a_correction_is_refused() -> None:
    with pytest.raises(ConfigError, match="loss=gspo already weighs whole episodes"):
        plain("gspo", correction=CorrectionSettings("truncate"))


@pytest.mark.parametrize("name", ["kl_coefficient", "entropy_coefficient"])
@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_objective_coefficient_below_zero_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(ObjectiveSettings("ppo"), **{name: value})


def test_objective_gspo_weighs_the_divergence_by_the_tokens_own_ratio() -> None:
    reference = vector([value - 0.3 for value in CURRENT])
    with_kl, _ = run(plain("gspo", kl_coefficient=0.5), reference_logprobs=reference)
    without, _ = run(plain("gspo"))
    np.testing.assert_allclose((with_kl.terms - without.terms).detach(), 0.5 * vector(RATIOS) * 0.3**2 / 2, atol=5e-7)


@pytest.mark.parametrize("loss", ["ppo", "cispo", "importance_sampling", "policy_gradient"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_objective_missing_logprobs_are_counted_under_a_correction_too(loss: str, kind: Any) -> None:
    behaviour = vector(BEHAVIOUR)
    behaviour[1] = math.nan
    inputs = LossInputs(vector(CURRENT, grad=True), behaviour, vector(ADVANTAGES))
    found = objective(inputs, plain(loss, correction=CorrectionSettings(kind)), torch.zeros(5, dtype=torch.float64))
    assert found.loss.num_missing_behaviour == 1
    assert torch.isfinite(found.terms).all()


@pytest.mark.parametrize(("name", "expected"), [("k1", 0.18), ("k2", 0.415), ("k3", 0.300653)])
def test_kl_golden_means_match_formula_sheet(name: Any, expected: float) -> None:
    assert float(kl_estimate(vector(CURRENT), vector(BEHAVIOUR), name).mean()) == pytest.approx(expected, abs=5e-7)


def test_kl_k2_on_policy_gradient_is_that_of_the_divergence() -> None:
    """The mean gradient of k2 over the policy's own distribution equals the gradient of KL(policy || reference)."""
    logits = vector([0.3, -0.2, 0.9], grad=True)
    reference = torch.log_softmax(vector([0.0, 0.5, -0.5]), -1)
    logprobs = torch.log_softmax(logits, -1)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)
    sampled = (logprobs.exp().detach() * kl_estimate(logprobs, reference, "k2")).sum()
    (estimated,) = torch.autograd.grad(sampled, logits)
    torch.testing.assert_close(estimated, exact, rtol=1e-10, atol=1e-12)


def test_objective_divergence_and_entropy_are_added_with_their_coefficients() -> None:
    reference, entropy = vector([-0.5] * 5), vector([1.0, 2.0, 3.0, 4.0, 5.0])
    base, _ = run(plain("ppo"))
    settings = plain("ppo", kl_coefficient=0.1, entropy_coefficient=0.01)
    result, _ = run(settings, reference_logprobs=reference, entropy=entropy)
    divergence = (vector(CURRENT) - reference) ** 2 / 2
    expected = base.terms.detach() + 0.1 * base.loss.ratio * divergence - 0.01 * entropy
    torch.testing.assert_close(result.terms.detach(), expected)
    assert result.sums["reference_kl"] == pytest.approx(float(divergence.sum()))


def test_objective_reference_missing_says_what_to_set() -> None:
    with pytest.raises(LearnerError, match=r"needs learner\.reference"):
        run(plain("ppo", kl_coefficient=0.1))


def test_distillation_mean_gradient_is_that_of_the_reverse_divergence() -> None:
    logits = vector([0.3, -0.2, 0.9], grad=True)
    teacher = torch.log_softmax(vector([1.0, 0.0, -1.0]), -1)
    logprobs = torch.log_softmax(logits, -1)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - teacher)).sum(), logits, retain_graph=True)
    inputs = LossInputs(logprobs, logprobs.detach(), torch.ones(3), reference_logprobs=teacher)
    terms = get_loss("distillation")(inputs, default_settings("distillation")).terms
    (estimated,) = torch.autograd.grad((logprobs.exp().detach() * terms).sum(), logits)
    torch.testing.assert_close(estimated, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["ppo", "cispo", "importance_sampling", "policy_gradient", "gspo"])
def test_objective_tokens_in_any_order_and_split_give_the_same_terms(name: str) -> None:
    whole, _ = run(plain(name))
    order = [3, 0, 4, 2, 1]
    means, sizes = episode_means(vector(CURRENT))
    parts = []
    for part in (order[:2], order[2:]):
        inputs = LossInputs(
            vector(CURRENT)[part], vector(BEHAVIOUR)[part], vector(ADVANTAGES)[part], episode_log_ratio=means[part]
        )
        parts.append(objective(inputs, plain(name), torch.zeros(len(part)), sizes[part]).terms)
    torch.testing.assert_close(torch.cat(parts), whole.terms.detach()[order], rtol=0, atol=0)
