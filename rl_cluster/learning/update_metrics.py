"""Sums over the tokens of one update, added up over micro-batches and ranks, and the metrics made of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from rl_cluster.algorithms.objective import Objective
from rl_cluster.learning.policy import PolicyInputs

_TOTALS = (
    "tokens", "loss", "entropy", "ratio", "clipped", "missing", "known", "gap", "kl", "own_tokens", "own_gap",
    "reference_kl", "correction_bounded",
)  # fmt: skip
_MAXIMA = ("gap", "own_gap", "ratio")


@dataclass
class UpdateSums:
    """`gap` is |learner - sampler| log-prob; the `own_` sums take only tokens sampled by the learner's own version."""

    current_version: int
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_TOTALS, 0.0))
    maxima: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_MAXIMA, 0.0))

    def add(
        self, inputs: PolicyInputs, logprobs: torch.Tensor, entropy: torch.Tensor, found: Objective, loss: float
    ) -> None:
        """Adds one micro-batch; tensors [S]."""
        result = found.loss
        known = ~torch.isnan(inputs.behaviour_logprobs)
        difference = torch.where(known, logprobs - inputs.behaviour_logprobs, torch.zeros_like(logprobs))
        gap = difference.abs()
        own = known & (inputs.versions == self.current_version)
        adding = {
            "tokens": float(len(logprobs)),
            "loss": loss,
            "entropy": float(entropy.sum()),
            "ratio": float(result.ratio.sum()),
            "clipped": float(result.clipped.sum()),
            "missing": float(result.num_missing_behaviour),
            "known": float(known.sum()),
            "gap": float(gap.sum()),
            "kl": float((torch.exp(difference) - 1 - difference).sum()),
            "own_tokens": float(own.sum()),
            "own_gap": float(gap[own].sum()),
            **found.sums,
        }
        for name, value in adding.items():
            self.totals[name] += value
        self.maxima["gap"] = max(self.maxima["gap"], float(gap.max()))
        self.maxima["ratio"] = max(self.maxima["ratio"], float(result.ratio.max()))
        if bool(own.any()):
            self.maxima["own_gap"] = max(self.maxima["own_gap"], float(gap[own].max()))

    def as_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums and the maxima as float64 vectors, ready to be reduced over ranks."""
        totals = torch.tensor([self.totals[name] for name in _TOTALS], dtype=torch.float64)
        maxima = torch.tensor([self.maxima[name] for name in _MAXIMA], dtype=torch.float64)
        return totals, maxima

    @staticmethod
    def metrics(totals: torch.Tensor, maxima: torch.Tensor) -> dict[str, float]:
        """Named metrics of all ranks; means are over the tokens that went through the model, those against the
        sampler over the ones of them whose log-prob it gave."""
        total = dict(zip(_TOTALS, totals.tolist(), strict=True))
        maximum = dict(zip(_MAXIMA, maxima.tolist(), strict=True))
        count, own = max(total["tokens"], 1.0), max(total["own_tokens"], 1.0)
        known = max(total["known"], 1.0)
        return {
            "learner/loss": total["loss"],
            "learner/tokens": total["tokens"],
            "learner/entropy": total["entropy"] / count,
            "learner/ratio_mean": total["ratio"] / count,
            "learner/ratio_max": maximum["ratio"],
            "learner/clip_fraction": total["clipped"] / count,
            "learner/missing_logprobs": total["missing"],
            "learner/sampler_gap_mean": total["gap"] / known,
            "learner/sampler_gap_max": maximum["gap"],
            "learner/sampler_kl": total["kl"] / known,
            "learner/own_version_tokens": total["own_tokens"],
            "learner/own_version_gap_mean": total["own_gap"] / own,
            "learner/own_version_gap_max": maximum["own_gap"],
            "learner/reference_kl": total["reference_kl"] / count,
            "learner/correction_bounded": total["correction_bounded"] / count,
        }
