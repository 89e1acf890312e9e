"""The smallest effect that a comparison could have seen, so that "no difference" is not read as "equal"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from rl_cluster.evaluation.statistics import student_quantile


def smallest_detectable_effect(differences: Sequence[float], level: float = 0.05, power: float = 0.8) -> float | None:
    """The mean difference that a two-sided paired test at `level` finds with probability `power`, from n differences.

    (t + z) * sd / sqrt(n), with Student's quantile for the level and the normal one for the power (Cohen 1988, chapter 2).
    None for n < 2, and where the differences have no spread, since nothing is known of it then.
    """
    if len(differences) < 2:
        return None
    spread = float(np.std(differences, ddof=1))
    if spread <= 1e-12 * max(1.0, float(np.abs(differences).max())):
        return None
    quantiles = student_quantile(1 - level / 2, len(differences) - 1) + NormalDist().inv_cdf(power)
    return quantiles * spread / math.sqrt(len(differences))
