"""Token losses and their aggregation against the golden values of the formula sheet."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.algorithms.aggregation import AGGREGATIONS, token_weights
from rl_cluster.algorithms.losses import default_settings, get_loss, loss_names
from rl_cluster.algorithms.types import LossInputs, LossSettings
from rl_cluster.errors import ConfigError, LearnerError

BEHAVIOUR = [-1.0, -2.0, -0.5, -2.5, -0.7]
CURRENT = [-0.6, -2.1, -1.2, -0.7, -1.2]
ADVANTAGES = [1.0, 1.0, 1.0, -0.5, -0.5]
RATIOS = [1.491825, 0.904837, 0.496585, 6.049647, 0.606531]
EPISODES = ["x", "y"]
TURNS = [np.array([1, 1, 2]), np.array([1, 2])]
GOLDEN = [
    # name, settings, terms, gradient with respect to lt, clipped
    (
        "importance_sampling",
        None,
        [-1.491825, -0.904837, -0.496585, 3.024824, 0.303265],
        [-1.491825, -0.904837, -0.496585, 3.024824, 0.303265],
        [0, 0, 0, 0, 0],
    ),
    (
        "ppo",
        None,
        [-1.2, -0.904837, -0.496585, 3.024824, 0.4],
        [0, -0.904837, -0.496585, 3.024824, 0],
        [1, 0, 0, 0, 1],
    ),
    (
        "ppo",
        LossSettings(0.8, 1.2, dual_clip=3.0),
        [-1.2, -0.904837, -0.496585, 1.5, 0.4],
        [0, -0.904837, -0.496585, 0, 0],
        [1, 0, 0, 1, 1],
    ),
    (
        "cispo",
        None,
        [0.895095, 1.900159, 0.595902, -1.75, -0.363918],
        [-1.491825, -0.904837, -0.496585, 2.5, 0.303265],
        [0, 0, 0, 1, 0],
    ),
    (
        "cispo",
        LossSettings(1.0, 6.0),
        [0.895095, 2.1, 1.2, -2.1, -0.6],
        [-1.491825, -1, -1, 3, 0.5],
        [0, 1, 1, 1, 1],
    ),
    (
        "cispo",  # truncated importance sampling with C = 2
        LossSettings(0.0, 2.0),
        [0.895095, 1.900159, 0.595902, -0.7, -0.363918],
        [-1.491825, -0.904837, -0.496585, 1.0, 0.303265],
        [0, 0, 0, 1, 0],
    ),
]


def tensors(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    current = torch.tensor(CURRENT, dtype=dtype, requires_grad=True)
    return current, torch.tensor(BEHAVIOUR, dtype=dtype), torch.tensor(ADVANTAGES, dtype=dtype)


def inputs_of(
    current: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, **more: torch.Tensor
) -> LossInputs:
    """With what a loss over episodes and a teacher need, as far as the test does not say otherwise."""
    known = {"episode_log_ratio": torch.zeros_like(advantages), "reference_logprobs": torch.zeros_like(advantages)}
    return LossInputs(current, behaviour, advantages, **{**known, **more})


@pytest.mark.parametrize(("name", "chosen", "terms", "gradient", "clipped"), GOLDEN)
def test_loss_golden_tokens_match_terms_and_gradient(
    name: str, chosen: LossSettings | None, terms: list[float], gradient: list[float], clipped: list[int]
) -> None:
    current, behaviour, advantages = tensors()
    result = get_loss(name)(inputs_of(current, behaviour, advantages), chosen or default_settings(name))
    result.terms.sum().backward()
    assert current.grad is not None
    np.testing.assert_allclose(result.terms.detach().numpy(), terms, atol=5e-7)
    np.testing.assert_allclose(current.grad.numpy(), gradient, atol=5e-7)
    np.testing.assert_allclose(result.ratio.numpy(), RATIOS, atol=5e-7)
    assert result.clipped.dtype == torch.bool
    assert result.clipped.tolist() == [bool(flag) for flag in clipped]
    assert not result.ratio.requires_grad
    assert result.num_missing_behaviour == 0


# What each loss does to a token's log-prob, written down once more: (ratio, advantage, gap to the teacher) -> d term / d lt.
GRADIENTS = {
    "importance_sampling": lambda ratio, advantage, gap: -ratio * advantage,
    "ppo": lambda ratio, advantage, gap: (
        0.0 if (ratio > 1.2 and advantage > 0) or (ratio < 0.8 and advantage < 0) else -ratio * advantage
    ),
    "cispo": lambda ratio, advantage, gap: -min(ratio, 5.0) * advantage,
    "policy_gradient": lambda ratio, advantage, gap: -advantage,
    "cross_entropy": lambda ratio, advantage, gap: -advantage,
    "distillation": lambda ratio, advantage, gap: min(ratio, 5.0) * gap,
}
TOKEN = st.tuples(*(st.floats(-4, 0) for _ in range(3)), st.floats(-3, 3))


@pytest.mark.parametrize("name", GRADIENTS)
@given(tokens=st.lists(TOKEN, min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_loss_any_tokens_have_the_gradient_of_the_formula(name: str, tokens: list[tuple[float, ...]]) -> None:
    logprobs, behaviour, teacher, advantages = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)
    )
    logprobs.requires_grad_()
    inputs = inputs_of(logprobs, behaviour, advantages, reference_logprobs=teacher)
    get_loss(name)(inputs, default_settings(name)).terms.sum().backward()
    expected = [GRADIENTS[name](math.exp(lt - lb), a, lt - lr) for lt, lb, lr, a in tokens]
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_losses_all_have_a_gradient_to_compare_with() -> None:
    assert {*GRADIENTS, "gspo"} == {*loss_names()}  # the ratio of gspo is the episode's: see test_objective


@pytest.mark.parametrize(("name", "total"), [("importance_sampling", 0.434842), ("ppo", 0.823401), ("cispo", 1.277237)])
def test_loss_float32_sum_matches_golden(name: str, total: float) -> None:
    result = get_loss(name)(inputs_of(*tensors(torch.float32)), default_settings(name))
    assert result.terms.dtype == torch.float32
    assert result.terms.sum().item() == pytest.approx(total, rel=1e-5)


def test_cross_entropy_unit_weights_is_negative_log_likelihood() -> None:
    current, behaviour, _ = tensors()
    result = get_loss("cross_entropy")(
        inputs_of(current, behaviour * math.nan, torch.ones(5, dtype=torch.float64)), LossSettings()
    )
    result.terms.sum().backward()
    assert result.terms.tolist() == [-value for value in CURRENT]
    assert current.grad is not None
    assert current.grad.tolist() == [-1.0] * 5
    assert result.num_missing_behaviour == 0


@pytest.mark.parametrize("name", [name for name in GRADIENTS if name != "cross_entropy"])
def test_loss_missing_behaviour_counts_as_on_policy(name: str) -> None:
    current, behaviour, advantages = tensors()
    behaviour[0] = math.nan
    result = get_loss(name)(inputs_of(current, behaviour, advantages), default_settings(name))
    result.terms.sum().backward()
    assert result.num_missing_behaviour == 1
    assert result.ratio[0].item() == 1.0
    np.testing.assert_allclose(result.ratio[1:].numpy(), RATIOS[1:], atol=5e-7)
    assert torch.isfinite(result.terms).all()
    assert current.grad is not None
    gap_to_teacher = CURRENT[0] - 0.0
    assert current.grad[0].item() == pytest.approx(GRADIENTS[name](1.0, ADVANTAGES[0], gap_to_teacher))


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo"])
def test_loss_extreme_log_ratio_stays_finite(name: str) -> None:
    current = torch.tensor([0.0, -500.0], requires_grad=True)
    behaviour = torch.tensor([-500.0, 0.0])
    result = get_loss(name)(inputs_of(current, behaviour, torch.tensor([-1.0, -1.0])), default_settings(name))
    result.terms.sum().backward()
    assert torch.isfinite(result.terms).all()
    assert current.grad is not None
    assert torch.isfinite(current.grad).all()
    assert result.ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20)], rel=1e-5)


@pytest.mark.parametrize("name", loss_names())
def test_loss_no_tokens_gives_empty_terms(name: str) -> None:
    empty = torch.zeros(0)
    result = get_loss(name)(inputs_of(empty, empty, empty), default_settings(name))
    assert result.terms.shape == result.ratio.shape == result.clipped.shape == (0,)


def test_get_loss_unknown_name_names_choices() -> None:
    with pytest.raises(
        ConfigError, match="cispo, cross_entropy, distillation, gspo, importance_sampling, policy_gradient, ppo"
    ):
        get_loss("pop")


@pytest.mark.parametrize("bad", [(1.2, 0.8, None), (-0.1, 1.0, None), (0.8, 1.2, 1.0), (math.nan, 1.0, None)])
def test_loss_settings_impossible_bounds_raise(bad: tuple[float, float, float | None]) -> None:
    with pytest.raises(ConfigError):
        LossSettings(*bad)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_mean", 0.164680),
        ("token_sum", 0.823401),
        ("seq_mean_token_mean", 0.422635),
        ("seq_mean_token_sum", 0.411701),
        ("const", 0.102925),
        ("turn_mean", 0.468955),
    ],
)
def test_aggregation_golden_ppo_terms_match_formula_sheet(name: str, expected: float) -> None:
    terms = get_loss("ppo")(inputs_of(*tensors()), default_settings("ppo")).terms.detach().numpy()
    weights = np.concatenate(token_weights(name, TURNS, EPISODES, max_episode_tokens=4))
    assert float(weights @ terms) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregation_split_rows_order_and_dummies_change_nothing(name: str) -> None:
    """An episode cut into rows, shuffled, beside dummy rows, weighs every token the same (invariant 7)."""
    (x, y), none = TURNS, np.zeros(0, np.int64)
    whole = token_weights(name, [x, y], ["x", "y"], max_episode_tokens=4)
    parts = [y[:1], x[:1], none, x[1:], y[1:]]
    split = token_weights(name, parts, ["y", "x", "dummy", "x", "y"], max_episode_tokens=4)
    assert [*split[1], *split[3]] == whole[0].tolist()
    assert [*split[0], *split[4]] == whole[1].tolist()
    assert len(split[2]) == 0


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize("splits", [[[0, 1], [2]], [[2, 0], [1]], [[0], [1], [2]]])
def test_aggregation_micro_batches_sum_to_the_whole_gradient(name: str, splits: list[list[int]]) -> None:
    """The gradient summed over micro-batches equals the gradient of one pass, whatever the split and the padding."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(11, generator=generator, dtype=torch.float64, requires_grad=True)
    rows = [torch.tensor([1, 4, 4]), torch.tensor([2]), torch.tensor([7, 3, 4, 9, 10])]
    turns = [np.array([0, 0, 1]), np.array([1]), np.array([0, 0, 1, 2, 2])]
    weights = token_weights(name, turns, ["e", "e", "f"], max_episode_tokens=6)

    def gradient(parts: list[list[int]]) -> torch.Tensor:
        total = torch.zeros_like(table)
        for part in parts:
            width = max(len(rows[i]) for i in part)
            padded = torch.zeros(len(part), width, dtype=torch.long)
            mask = torch.zeros(len(part), width, dtype=torch.bool)
            for place, i in enumerate(part):
                padded[place, : len(rows[i])] = rows[i]
                mask[place, : len(rows[i])] = True
            current = table[padded][mask]
            weight = torch.tensor(np.concatenate([weights[i] for i in part]))
            result = get_loss("ppo")(
                inputs_of(current, current.detach() - 0.1, torch.ones_like(current)), default_settings("ppo")
            )
            total += torch.autograd.grad((weight * result.terms).sum(), table)[0]
        return total

    torch.testing.assert_close(gradient(splits), gradient([[0, 1, 2]]), rtol=1e-12, atol=1e-14)


def test_aggregation_no_trained_token_names_first_trajectory() -> None:
    """A batch without trainable tokens stops with the reason and the first trajectory id."""
    with pytest.raises(LearnerError, match="t-17"):
        token_weights("token_mean", [np.zeros(0, np.int64)] * 2, ["t-17", "t-18"])


def test_aggregation_const_without_length_raises() -> None:
    with pytest.raises(ConfigError, match="max_episode_tokens"):
        token_weights("const", [np.array([0])], ["x"])


def test_aggregation_unknown_name_names_choices() -> None:
    with pytest.raises(ConfigError, match="token_mean, token_sum"):
        token_weights("mean", [np.array([0])], ["x"])


@pytest.mark.parametrize(
    "settings",
    [{"clip_low": float("inf")}, {"clip_low": float("nan")}, {"dual_clip": float("nan")}, {"dual_clip": 1.0}],
)
def test_loss_settings_that_are_no_numbers_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"no band of ratios|must be over 1"):
        LossSettings(**settings)
