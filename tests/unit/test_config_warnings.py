"""What a user is warned of before a run."""

from __future__ import annotations

import pytest

from rl_cluster.config_warnings import warnings_of
from tests.helpers.configuration import load_config


@pytest.mark.parametrize("loss", ["importance_sampling", "policy_gradient"])
def test_warnings_loss_without_a_trust_region_on_old_samples_is_named(loss: str) -> None:
    (warning,) = warnings_of(load_config([f"algorithm/loss={loss}", "staleness.max_steps_off_policy=3"]))
    assert f"algorithm.loss={loss} has no trust region" in warning
    for safe in ("staleness.max_steps_off_policy=0", "algorithm/correction=truncate", "algorithm/loss=cispo"):
        assert warnings_of(load_config([f"algorithm/loss={loss}", safe])) == []


def test_warnings_constant_normaliser_by_default_says_its_number() -> None:
    const = ["algorithm.loss.aggregation=const", "environment.max_turns=5", "rollout.sampling_max_tokens=40"]
    (warning,) = warnings_of(load_config(const))
    assert "divides by 200 tokens an episode" in warning
    assert warnings_of(load_config([*const, "algorithm.loss.max_episode_tokens=900"])) == []


def test_warnings_gspo_with_another_aggregation_is_named() -> None:
    assert warnings_of(load_config(["algorithm/loss=gspo"])) == []
    (warning,) = warnings_of(load_config(["algorithm/loss=gspo", "algorithm.loss.aggregation=token_mean"]))
    assert warning.startswith("algorithm.loss.aggregation=token_mean weighs long episodes more")


@pytest.mark.parametrize("loss", ["cispo", "gspo"])
def test_warnings_loss_by_its_name_alone_keeps_the_bounds_of_ppo(loss: str) -> None:
    given = [f"algorithm.loss.name={loss}", "algorithm.loss.aggregation=seq_mean_token_mean"]
    (warning,) = warnings_of(load_config(given))
    assert f"are the bounds of ppo; algorithm/loss={loss}" in warning
    assert warnings_of(load_config([f"algorithm/loss={loss}"])) == []


def test_warnings_own_loss_with_the_bounds_of_ppo_says_to_set_its_own() -> None:
    own = ["algorithm.loss.name=rl_cluster.algorithms.losses.cispo"]
    (warning,) = warnings_of(load_config(own))
    assert warning.endswith(
        "are the bounds of ppo; set those of rl_cluster.algorithms.losses.cispo, unless they are its own"
    )
    assert warnings_of(load_config([*own, "algorithm.loss.clip_low=0.0", "algorithm.loss.clip_high=5.0"])) == []


def test_warnings_cross_entropy_in_reinforcement_learning_names_policy_gradient() -> None:
    supervised = ["algorithm/loss=cross_entropy", "staleness.max_steps_off_policy=0"]
    (warning,) = warnings_of(load_config(supervised))
    assert "algorithm/loss=policy_gradient is the same" in warning
    assert warnings_of(load_config([*supervised, "training.max_steps=0"])) == []


@pytest.mark.parametrize(("loss", "said"), [("ppo", True), ("cispo", True), ("importance_sampling", False)])
def test_warning_correction_leaves_the_clip_of_a_loss_nothing_to_do(loss: str, said: bool) -> None:
    overrides = [f"algorithm/loss={loss}", "algorithm/correction=truncate", "rollout.sampling_top_p=1.0"]
    assert any("clip_high do nothing" in warning for warning in warnings_of(load_config(overrides))) == said
    assert not any("clip_high do nothing" in warning for warning in warnings_of(load_config(overrides[:1])))
