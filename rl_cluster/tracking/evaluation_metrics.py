"""Numbers of an evaluation as the tracker names them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_cluster.episodes.logprobs import spread
from rl_cluster.evaluation.metrics import pass_at_k, pass_power_k
from rl_cluster.evaluation.summary import EpisodeRecord, by_question


def reward_metrics(records: Sequence[EpisodeRecord], prefix: str, success_threshold: float) -> dict[str, float]:
    """`PREFIX/reward/*`, `PREFIX/turns/*` and `PREFIX/tokens/*`.

    An episode is solved from an nDCG@10 of `success_threshold`; one that infrastructure lost is not solved, as in the report, and
    in no other number. `*_within_groups` are means over questions of that number among the question's episodes. Numbers without
    an episode that has them are left out.
    """
    groups = by_question(records)
    solved = [record.score >= success_threshold for record in records]
    metrics = {
        f"{prefix}/reward/pass_at_1": pass_at_k(len(records), sum(solved), 1),
        f"{prefix}/reward/pass_power_1": pass_power_k(len(records), sum(solved), 1),
        f"{prefix}/reward/succeeded_rollouts": float(sum(solved)),
        f"{prefix}/reward/failed_rollouts": float(sum(not record.finished for record in records)),
        f"{prefix}/reward/num_prompts": float(len(groups)),
        f"{prefix}/reward/rollouts_per_prompt": len(records) / len(groups),
        f"{prefix}/reward/success_threshold": success_threshold,
    }
    found = [[record.reward for record in group if record.reward is not None] for group in groups.values()]
    found = [np.array(rewards) for rewards in found if rewards]
    if found:
        rewards, within = np.concatenate(found), [spread(each) for each in found]
        metrics |= {f"{prefix}/reward/{name}": value for name, value in spread(rewards).items()}
        metrics[f"{prefix}/reward/zero_frac"] = float((rewards == 0).mean())
        for name in ("mean", "std", "min", "max"):
            metrics[f"{prefix}/reward/{name}_within_groups"] = float(np.mean([each[name] for each in within]))
    played = [record for record in records if not record.outcome.is_infrastructure_failure]
    if not played:
        return metrics
    turns = spread(np.array([record.turns for record in played]))
    metrics |= {f"{prefix}/turns/{name}": turns[name] for name in ("mean", "min", "max")}
    metrics[f"{prefix}/tokens/prompt_mean"] = float(np.mean([record.prompt_tokens for record in played]))
    tokens = spread(np.array([record.sampled_tokens for record in played]))
    return metrics | {f"{prefix}/tokens/response_{name}": value for name, value in tokens.items()}
