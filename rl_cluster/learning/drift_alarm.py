"""The alarm that stops a run whose sampler no longer runs the learner's weights."""

from __future__ import annotations

from collections.abc import Mapping

from rl_cluster.errors import SamplerDriftError


def check_drift(metrics: Mapping[str, float], alarm: float) -> None:
    """Judges one update by the tokens that the learner's own version sampled, so that ordinary off-policy drift does not ring.

    metrics: those of `LearnerRank.update`. alarm: the largest accepted mean of |learner - sampler| log-prob. Raises
    SamplerDriftError.
    """
    missing, trained = metrics["learner/missing_logprobs"], metrics["learner/tokens"]
    if trained and missing >= trained:
        raise SamplerDriftError(
            f"None of {trained:.0f} sampled tokens has a log-prob, so that nothing says whether the sampler runs these weights; look into the "
            "engine."
        )
    gap, tokens = metrics["learner/own_version_gap_mean"], metrics["learner/own_version_tokens"]
    if tokens and gap > alarm:
        raise SamplerDriftError(
            f"On {tokens:.0f} tokens sampled by the learner's own version, sampler and learner differ by {gap:.3f} on average "
            f"(learner.drift_alarm={alarm}); the sampler does not run these weights."
        )
