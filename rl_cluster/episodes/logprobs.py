"""Numbers of the log-probs that were recorded while sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_cluster.episodes.trajectory import Trajectory


def logprob_metrics(logprobs: np.ndarray, prefix: str) -> dict[str, float]:
    """`PREFIX/logprob/*` of sampled tokens [T]: those that are exactly 0 apart from the others, and those that the engine did
    not report (NaN)."""
    others = logprobs[(logprobs != 0) & ~np.isnan(logprobs)]
    zeros = float((logprobs == 0).sum())
    metrics = {
        f"{prefix}/logprob/zero_count": zeros,
        f"{prefix}/logprob/zero_frac": zeros / max(1, len(logprobs)),
        f"{prefix}/logprob/missing_count": float(np.isnan(logprobs).sum()),
    }
    of_others = spread(others) if len(others) else dict.fromkeys(("mean", "std", "min", "max"), 0.0)
    return metrics | {f"{prefix}/logprob/nz_{name}": value for name, value in of_others.items()}


def sampled_logprobs(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """The recorded log-probs of all sampled tokens [T]."""
    parts = [np.asarray(turn.logprobs, dtype=np.float64) for each in trajectories for turn in each.turns]
    return np.concatenate([*parts, np.zeros(0)])


def spread(values: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation (ddof 0), minimum and maximum of values [N], N >= 1."""
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
    }
