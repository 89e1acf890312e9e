"""What a configuration allows and a user would rather know before the run than after it."""

from __future__ import annotations

from rl_cluster.config import Config
from rl_cluster.config_algorithm import UNCLIPPED

PPO_BOUNDS = (0.8, 1.2)


def warnings_of(config: Config) -> list[str]:
    """One sentence for each."""
    found = []
    algorithm, lag = config.algorithm, config.staleness.max_steps_off_policy
    if algorithm.loss.name in UNCLIPPED and algorithm.correction.kind == "none" and lag:
        found.append(
            f"algorithm.loss={algorithm.loss.name} has no trust region, and staleness.max_steps_off_policy={lag} lets it train on samples of "
            "older weights; prefer ppo or cispo, set algorithm/correction=truncate, or set the lag to 0"
        )
    if algorithm.loss.aggregation == "const" and algorithm.loss.max_episode_tokens is None:
        tokens = config.environment.max_turns * config.rollout.sampling_max_tokens
        found.append(
            f"algorithm.loss.aggregation=const divides by {tokens} tokens an episode, environment.max_turns={config.environment.max_turns} "
            f"replies of rollout.sampling_max_tokens={config.rollout.sampling_max_tokens}; state algorithm.loss.max_episode_tokens for "
            "another normaliser"
        )
    if algorithm.loss.name == "gspo" and algorithm.loss.aggregation != "seq_mean_token_mean":
        found.append(
            f"algorithm.loss.aggregation={algorithm.loss.aggregation} weighs long episodes more than the gradient that GSPO is published with; "
            "algorithm/loss=gspo by itself sets seq_mean_token_mean"
        )
    loss = algorithm.loss
    if loss.name not in UNCLIPPED and algorithm.correction.kind != "none":
        found.append(
            f"algorithm.correction={algorithm.correction.kind} takes the ratio of {loss.name} against the learner's own log-probs at the start "
            "of a step, which makes one update: the ratio is 1, and clip_low and clip_high do nothing; the correction's own bounds do"
        )
    if loss.name not in ("ppo", *UNCLIPPED) and (loss.clip_low, loss.clip_high) == PPO_BOUNDS:
        mend = (
            f"set those of {loss.name}, unless they are its own"
            if "." in loss.name
            else f"algorithm/loss={loss.name}, in place of algorithm.loss.name={loss.name}, sets those that {loss.name} is published with"
        )
        found.append(
            f"algorithm.loss.clip_low={loss.clip_low} and clip_high={loss.clip_high} are the bounds of ppo; {mend}"
        )
    if loss.name == "cross_entropy" and config.training.max_steps:
        found.append(
            f"algorithm.loss=cross_entropy in {config.training.max_steps} steps of reinforcement learning weighs likelihoods by advantages, "
            "negative ones too, and compares with no sampler; algorithm/loss=policy_gradient is the same and reports its ratios, and "
            "training.max_steps=0 fine-tunes on demonstrations alone"
        )
    return found
