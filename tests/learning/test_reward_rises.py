"""Rewards rise: episodes of two turns to rows, advantages and steps of a real learner, for every loss and several advantages.

The policy is a tiny random model that is sampled from directly, without an engine: this is about what a step does with
episodes, not about how they are played.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_cluster.algorithms.types import AdvantageSettings
from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.learning.batch import build_step_batch
from rl_cluster.learning.settings import UpdateSettings
from tests.helpers.tiny_learner import UPDATE, VOCABULARY, Processes, learner_rank

pytestmark = pytest.mark.cluster

WANTED = VOCABULARY // 4
"""Ids below this one are rewarded: a quarter of what a random policy samples."""
STEPS, GROUPS, GROUP_SIZE, TURN = 16, 2, 8, 4
LOSSES = {
    "ppo": replace(UPDATE, loss="ppo", clip_low=0.8, clip_high=1.2),
    "cispo": replace(UPDATE, loss="cispo", clip_high=5.0),
    "importance_sampling": UPDATE,
    "policy_gradient": replace(UPDATE, loss="policy_gradient"),
    "gspo": replace(UPDATE, loss="gspo", clip_low=0.9, clip_high=1.1, aggregation="seq_mean_token_mean"),
}


def _sample(policy: Any, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """TURN ids and their log-probs for each of prompts of one length."""
    import torch

    ids, logprobs = torch.tensor(prompts), []
    with torch.no_grad():
        for _ in range(TURN):
            logits = torch.log_softmax(policy(input_ids=ids).logits[:, -1].float(), -1)
            chosen = torch.multinomial(logits.exp(), 1)
            logprobs.append(logits.gather(1, chosen))
            ids = torch.cat([ids, chosen], 1)
    sampled, values = ids[:, -TURN:].tolist(), torch.cat(logprobs, 1).tolist()
    return list(zip(sampled, values, strict=True))


def _play(policy: Any, step: int, version: int) -> dict[str, list[Trajectory]]:
    """Groups of episodes of two turns; an observation stands between them."""
    groups = {}
    for number in range(GROUPS):
        name, question = f"{step}:{number}", [2 + number, 9, 5]
        first = _sample(policy, [question] * GROUP_SIZE)
        later = [[*question, *ids, 11, 12] for ids, _ in first]
        second = _sample(policy, later)
        groups[name] = []
        for member in range(GROUP_SIZE):
            turns = [
                Turn(prompt, ids, logprobs, [version] * TURN)
                for prompt, (ids, logprobs) in ((question, first[member]), (later[member], second[member]))
            ]
            share = float(np.mean([token < WANTED for turn in turns for token in turn.sampled_ids]))
            groups[name].append(Trajectory(f"{name}/{member}", name, name, turns, Outcome.FINISHED, share))
    return groups


def learn(
    rank: int, world: int, port: int, model: Path, update: UpdateSettings, advantage: str, lag: int
) -> tuple[list[float], list[float]]:
    """Mean rewards of the groups in the order of their training, and of those that a policy of the end would get."""
    import torch

    torch.manual_seed(0)
    # Rewards are positive, so that returns need a baseline.
    settings = AdvantageSettings(whiten=advantage == "monte_carlo")
    changes: dict[str, Any] = {"learning_rate": 5e-3, "adam_eps": 1e-8, "grad_clip_norm": 1.0, "total_steps": STEPS}
    with learner_rank(model, rank, world, port, **changes) as learner:
        policy = learner.engine.module.model
        waiting = [_play(policy, -number, 0) for number in range(lag)]
        rewards = []
        for step in range(1, STEPS + 1):
            waiting.append(_play(policy, step, step - 1))
            batch = build_step_batch(waiting.pop(0), advantage, settings, step - 1)
            learner.update(batch.rows, update)
            rewards.append(batch.metrics["rollout/reward/mean"])
        final = [batch_mean(_play(policy, STEPS + number, STEPS)) for number in range(1, 4)]
        return rewards, final


def batch_mean(groups: dict[str, list[Trajectory]]) -> float:
    return float(np.mean([episode.reward or 0.0 for group in groups.values() for episode in group]))


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("loss", LOSSES)
def test_reward_rises_under_every_loss(process: Processes, models: dict[bool, Path], loss: str, lag: int) -> None:
    ((rewards, final),) = process.call(120.0, learn, models[False], LOSSES[loss], "group_based", lag)
    assert np.mean(rewards[:2]) < 0.4
    assert np.mean(final) > 0.5


@pytest.mark.parametrize("advantage", ["rloo", "reinforce_pp_baseline", "opo", "gpg", "monte_carlo"])
def test_reward_rises_under_other_advantages(process: Processes, models: dict[bool, Path], advantage: str) -> None:
    ((rewards, final),) = process.call(120.0, learn, models[False], LOSSES["ppo"], advantage, 0)
    assert np.mean(rewards[:2]) < 0.4
    assert np.mean(final) > 0.5
