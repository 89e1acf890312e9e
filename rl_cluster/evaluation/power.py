"""The smallest effect that a comparison could have seen, so that "no difference" is not read as "equal"."""

from __future__ import annotations

import math
from statistics import NormalDist

from rl_cluster.evaluation.statistics import student_quantile


def smallest_detectable_effect(
    spread: float | None, n: int, comparisons: int = 1, level: float = 0.05, power: float = 0.8
) -> float | None:
    """The mean of n differences that a two-sided paired test finds with probability `power`, in their unit.

    (t + z) * spread / sqrt(n), with Student's quantile for the level and the normal one for the power (Cohen 1988, chapter 2);
    `spread` is the standard deviation (ddof 1) of the differences. Of several `comparisons` that are corrected together each is
    held to level / comparisons, the strictest level at which Holm's correction may have to find it.

    None where nothing is known of the spread (None, or 0), and where the signs of so few differences give no p of that level.
    """
    held_to = level / comparisons
    if spread is None or spread <= 1e-12 or 2.0 ** (1 - n) > held_to:
        return None
    quantiles = student_quantile(1 - held_to / 2, n - 1) + NormalDist().inv_cdf(power)
    return quantiles * spread / math.sqrt(n)
