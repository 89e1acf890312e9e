"""The schema of the `algorithm` section: loss, advantage, correction and divergence; imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rl_cluster.config_types import Positive, Section

UNGROUPED_ADVANTAGES = ("group_based_per_turn", "monte_carlo", "reinforce_pp", "reinforce_pp_baseline")
"""Advantages that need not be 0 where all episodes of a group have the same reward."""
UNCLIPPED = ("importance_sampling", "policy_gradient", "cross_entropy")


class LossConfig(Section):
    """`max_episode_tokens`: what `aggregation=const` divides by beside the episodes; null for max_turns replies of
    sampling_max_tokens."""

    name: str
    clip_low: Annotated[float, Field(ge=0)]
    clip_high: Annotated[float, Field(ge=0)]
    dual_clip: Annotated[float, Field(gt=1)] | None
    aggregation: Literal["token_mean", "token_sum", "seq_mean_token_mean", "seq_mean_token_sum", "turn_mean", "const"]
    max_episode_tokens: Positive | None

    @model_validator(mode="after")
    def _band(self) -> LossConfig:
        if self.clip_low >= self.clip_high:
            raise ValueError(
                f"clip_low={self.clip_low} is not under clip_high={self.clip_high}; both are absolute ratios, such as 0.8 and 1.2"
            )
        if not self.clip_low <= 1 <= self.clip_high:
            raise ValueError(
                f"clip_low={self.clip_low} and clip_high={self.clip_high} leave no room for the ratio 1 of an unchanged policy; both are "
                "absolute ratios: write 0.8 and 1.28 for what others call 0.2 and 0.28"
            )
        if self.name in UNCLIPPED and (self.clip_low > 0 or self.clip_high < 1e9):
            raise ValueError(
                f"clip_low={self.clip_low} and clip_high={self.clip_high} are not read by {self.name}, which does not clip; choose it by "
                f"algorithm/loss={self.name}, or a loss that clips"
            )
        if self.dual_clip is not None and self.name != "ppo":
            raise ValueError(f"dual_clip={self.dual_clip} is read by ppo only, not by {self.name}; leave it out")
        if self.max_episode_tokens is not None and self.aggregation != "const":
            raise ValueError(
                f"max_episode_tokens={self.max_episode_tokens} is read by aggregation=const only, not by {self.aggregation}; leave it out"
            )
        return self


_CORRECTION_DEFAULTS = {"level": "token", "low": 0.5, "high": 2.0}
_CORRECTION_UNREAD = {"none": ("level", "low", "high"), "truncate": ("low",), "mask": ()}


class CorrectionConfig(Section):
    kind: Literal["none", "truncate", "mask"]
    level: Literal["token", "episode_mean", "episode_sum"]
    low: Annotated[float, Field(ge=0)]
    high: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _band(self) -> CorrectionConfig:
        for name in _CORRECTION_UNREAD[self.kind]:
            if getattr(self, name) != _CORRECTION_DEFAULTS[name]:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not read by kind={self.kind}; leave it at {_CORRECTION_DEFAULTS[name]}"
                )
        if self.low >= self.high:
            raise ValueError(f"low={self.low} is not under high={self.high}; give a band of weights such as 0.5 and 2")
        if not self.low <= 1 <= self.high:
            raise ValueError(
                f"low={self.low} and high={self.high} leave out the weight 1 of a token that sampler and learner agree on; give a band such as "
                "0.5 and 2"
            )
        return self


class KLConfig(Section):
    coefficient: Annotated[float, Field(ge=0)]
    estimator: Literal["k1", "k2", "k3"]

    @model_validator(mode="after")
    def _has_a_gradient(self) -> KLConfig:
        if self.estimator == "k1":
            raise ValueError(
                "estimator=k1 has no gradient on average as a loss; choose k2 or k3, or take it from the reward with "
                "algorithm/advantage=reinforce_pp algorithm.advantage.kl_beta=0.01"
            )
        return self


class AdvantageConfig(Section):
    name: str
    normalize_std: bool
    whiten: bool
    gamma: Annotated[float, Field(gt=0, le=1)]
    kl_beta: Annotated[float, Field(ge=0)]
    base: Literal["group_based", "rloo", "opo"]

    @model_validator(mode="after")
    def _beta_is_read(self) -> AdvantageConfig:
        if self.kl_beta and self.name != "reinforce_pp":
            raise ValueError(
                f"kl_beta={self.kl_beta} is read by reinforce_pp only, not by {self.name}; set algorithm.kl.coefficient for a divergence "
                "in the loss"
            )
        return self


class AlgorithmConfig(Section):
    loss: LossConfig
    advantage: AdvantageConfig
    correction: CorrectionConfig
    kl: KLConfig
    entropy_coefficient: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _gap_is_weighed_once(self) -> AlgorithmConfig:
        if self.loss.name == "gspo" and self.correction.kind != "none":
            raise ValueError(
                f"correction.kind={self.correction.kind!r} would weigh the gap to the sampler a second time, since gspo's ratio is that "
                "of the episode to the sampler; set algorithm/correction=none"
            )
        return self
