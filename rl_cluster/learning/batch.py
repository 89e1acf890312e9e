"""Finished groups to the rows of one training step, with the metrics of what was sampled."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl_cluster.algorithms.advantages import get_advantage
from rl_cluster.algorithms.types import AdvantageSettings, EpisodeBatch, TokenAdvantages
from rl_cluster.episodes.logprobs import logprob_metrics
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import LearnerError
from rl_cluster.sequences.extension import rows_from_trajectory, set_advantages
from rl_cluster.sequences.row import TrainingRow


@dataclass
class StepBatch:
    """The rows of one step, advantages set, and the metrics of the step as the tracker names them."""

    rows: list[TrainingRow]
    metrics: dict[str, float]


def rows_of_groups(groups: Mapping[str, Sequence[Trajectory]]) -> tuple[list[TrainingRow], int]:
    """The rows of all episodes that are trained, in a fixed order, and how many turns broke a prefix."""
    rows: list[TrainingRow] = []
    broken = 0
    for trajectory in _trained(groups):
        made = rows_from_trajectory(trajectory)
        rows.extend(made.rows)
        broken += made.num_broken_prefixes
    return rows, broken


def _trained(groups: Mapping[str, Sequence[Trajectory]]) -> list[Trajectory]:
    return [trajectory for group in groups.values() for trajectory in group if not trajectory.left_out]


def build_step_batch(
    groups: Mapping[str, Sequence[Trajectory]],
    advantage: str,
    settings: AdvantageSettings,
    completed_steps: int,
    reference_gaps: Mapping[int, np.ndarray] | None = None,
) -> StepBatch:
    """Rows of the episodes that are trained, with their advantages among these; metrics of all that were played.

    reference_gaps: by index into `rows_of_groups`, the estimate k1 for each sampled token of a row. Raises LearnerError,
    naming trajectories and outcomes, when nothing can be trained.
    """
    episodes = _trained(groups)
    rows, broken = rows_of_groups(groups)
    if empty := [group_id for group_id, group in groups.items() if not group]:
        raise LearnerError(f"The group {empty[0]} has no episode; give each group at least one.")
    if not any(row.num_trained for row in rows):
        listed = ", ".join(f"{t.trajectory_id} ({t.outcome.value})" for t in episodes[:5]) or "there is none"
        raise LearnerError(f"No token of this step can be trained; first trajectories: {listed}. Check the loss masks.")
    batch = _episode_batch(episodes, rows, reference_gaps)
    advantages = get_advantage(advantage)(batch, settings)
    set_advantages(rows, {t.trajectory_id: a for t, a in zip(episodes, advantages, strict=True)})
    metrics = _metrics(groups, episodes, rows, advantages, completed_steps)
    metrics["training/broken_prefixes"] = float(broken)
    return StepBatch(rows, metrics)


def has_signal(group: Sequence[Trajectory], advantage: str, settings: AdvantageSettings) -> bool:
    """Whether an advantage that compares the episodes of a group gives any token of this one a value other than 0."""
    episodes = [trajectory for trajectory in group if not trajectory.left_out]
    return any(np.any(values) for values in get_advantage(advantage)(_episode_batch(episodes, [], None), settings))


def _episode_batch(
    episodes: list[Trajectory], rows: list[TrainingRow], reference_gaps: Mapping[int, np.ndarray] | None
) -> EpisodeBatch:
    by_turn = any(t.turn_rewards for t in episodes)
    without = next((t for t in episodes if t.turn_rewards is None and t.turns), None)
    if by_turn and without is not None:
        raise LearnerError(
            f"Trajectory {without.trajectory_id} has no rewards for its turns, but others of its step have; give all or none."
        )
    gaps: dict[str, list[np.ndarray]] = {t.trajectory_id: [] for t in episodes}
    for index, row in enumerate(rows):
        if reference_gaps is not None:
            gaps[row.trajectory_id].append(reference_gaps.get(index, np.zeros(0)))
    return EpisodeBatch(
        [t.group_id for t in episodes],
        np.array([t.reward for t in episodes], dtype=np.float64),
        [[len(turn.sampled_ids) for turn in t.turns] for t in episodes],
        [t.turn_rewards or [] for t in episodes] if by_turn else None,
        [_transitions(t) for t in episodes],
        None if reference_gaps is None else [np.concatenate([*gaps[t.trajectory_id], np.zeros(0)]) for t in episodes],
    )


def _transitions(trajectory: Trajectory) -> list[Hashable]:
    """What each turn did, in which state, and what came of it: what was found before, the calls, what was found then.

    Two searches that differ in their words only are different steps, even when they find the same.
    """
    steps: list[Hashable] = []
    before: Hashable = "start"
    for turn in trajectory.turns:
        # Malformed calls have no arguments to compare; the reply itself tells them apart.
        malformed = any(call.error is not None for call in turn.tool_calls)
        calls: Hashable = (
            tuple(turn.sampled_ids)
            if malformed
            else tuple((call.name, json.dumps(call.arguments, sort_keys=True)) for call in turn.tool_calls)
        )
        last = turn is trajectory.turns[-1]
        after: Hashable = (trajectory.outcome.value, *trajectory.ranking) if last else tuple(turn.found_ids)
        steps.append((before, calls, after))
        before = after
    return steps


def _metrics(
    groups: Mapping[str, Sequence[Trajectory]],
    trained_episodes: list[Trajectory],
    rows: list[TrainingRow],
    token_advantages: TokenAdvantages,
    completed_steps: int,
) -> dict[str, float]:
    """Groups count as without signal where every advantage is 0, whatever their rewards. `training/` and advantages are of
    what is trained, `rollout/` of what was played."""
    episodes = [trajectory for group in groups.values() for trajectory in group]
    rewards = np.array([t.reward for t in episodes], dtype=np.float64)
    lengths = np.array([t.num_sampled for t in episodes])
    turns = np.array([len(t.turns) for t in episodes])
    advantages = np.array([values.mean() if len(values) else 0.0 for values in token_advantages])
    logprobs = np.concatenate([row.behaviour_logprobs[row.loss_mask] for row in rows])
    tokens = sum(len(row) for row in rows)
    trained = int(sum(row.num_trained for row in rows))
    group_rewards = [np.array([t.reward for t in group], dtype=np.float64) for group in groups.values()]
    spread = np.array([values.max() - values.min() for values in group_rewards])
    moved = {t.group_id for t, values in zip(trained_episodes, token_advantages, strict=True) if np.any(values)}
    flat = np.array([group[0].group_id not in moved for group in groups.values()])
    group_means = np.array([values.mean() for values in group_rewards])
    valid = [values.mean() for values, is_flat in zip(group_rewards, flat, strict=True) if not is_flat]
    versions = [
        min(v) for v in ([x for t in g for u in t.turns for x in u.weight_versions] for g in groups.values()) if v
    ]
    ages = [completed_steps - version for version in versions]
    outcomes = [t.outcome for t in episodes]
    metrics: dict[str, float] = {
        "training/num_groups": len(groups),
        "training/num_trajectories": len(trained_episodes),
        "training/total_tokens": tokens,
        "training/num_datums": len(rows),
        "training/datums_per_trajectory": len(rows) / len(trained_episodes),
        "training/action_tokens_mean": trained / len(trained_episodes),
        "training/obs_tokens_mean": (tokens - trained) / len(trained_episodes),
        "training/trainable_token_positions": trained,
        "training/nontrainable_token_positions": tokens - trained,
        "training/trainable_token_ratio": trained / tokens,
        "rollout/reward/mean": rewards.mean(),
        "rollout/reward/valid_mean": float(np.mean(valid)) if valid else 0.0,
        "rollout/reward/std": rewards.std(),
        "rollout/reward/min": rewards.min(),
        "rollout/reward/max": rewards.max(),
        "rollout/reward/zero_frac": float((rewards == 0).mean()),
        "rollout/turns/mean": turns.mean(),
        "rollout/turns/min": turns.min(),
        "rollout/turns/max": turns.max(),
        "rollout/tokens/prompt_mean": float(np.mean([len(t.turns[0].prompt_ids) for t in episodes if t.turns])),
        "rollout/tokens/response_mean": lengths.mean(),
        "rollout/tokens/response_std": lengths.std(),
        "rollout/tokens/response_min": lengths.min(),
        "rollout/tokens/response_max": lengths.max(),
        "rollout/logprob/zero_per_group": float((logprobs == 0).sum() / len(groups)),
        "rollout/advantage/mean": advantages.mean(),
        "rollout/advantage/std": advantages.std(),
        "rollout/advantage/min": advantages.min(),
        "rollout/advantage/max": advantages.max(),
        "rollout/advantage/n_positive": float((advantages > 0).sum()),
        "rollout/advantage/n_negative": float((advantages < 0).sum()),
        "rollout/failure_rate": float(np.mean([outcome.is_policy_failure for outcome in outcomes])),
        "rollout/malformed_calls": float(np.mean([_malformed(t) for t in episodes])),
        "rollout/mixed_cache_tokens": float(sum(u.mixed_cache_tokens for t in episodes for u in t.turns)),
        "analysis/batch_valid_ratio": float((~flat).mean()),
        "analysis/zero_adv_groups": float(flat.sum()),
        "analysis/zero_adv_nonzero_reward": float((flat & (group_means != 0)).sum()),
        "analysis/zero_adv_zero_reward": float((flat & (group_means == 0)).sum()),
        "analysis/reward_variance_across_groups": float(group_means.var()),
        "analysis/mean_group_reward_spread": float(spread.mean()),
        "staleness/age_mean": float(np.mean(ages)) if ages else 0.0,
        "staleness/age_max": float(max(ages, default=0)),
        **logprob_metrics(logprobs, "rollout"),
    }
    for outcome in set(outcomes):
        metrics[f"rollout/outcome/{outcome.value}"] = outcomes.count(outcome) / len(outcomes)
    return {name: float(value) for name, value in metrics.items()}


def _malformed(trajectory: Trajectory) -> int:
    return sum(call.error is not None for turn in trajectory.turns for call in turn.tool_calls)
