"""How token terms become one number: a weight per row, fixed over the whole optimiser batch before any backward pass.

With these weights the loss is the plain sum of weight times term, so that it does not depend on how rows are spread
over micro-batches and ranks, nor on how an episode is split into rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rl_cluster.errors import ConfigError, LearnerError

AGGREGATIONS = ("token_mean", "token_sum", "seq_mean_token_mean", "seq_mean_token_sum", "const")


def token_weights(
    name: str,
    trained_tokens: Sequence[int] | npt.NDArray[np.int_],
    episode_ids: Sequence[str],
    max_episode_tokens: int | None = None,
) -> npt.NDArray[np.float64]:
    """The weight [R] of every trained token of each row, given the trained tokens [R] and the episode [R] of all rows.

    token_mean 1 / all tokens; token_sum 1; seq_mean_token_mean 1 / (episodes * tokens of the episode);
    seq_mean_token_sum 1 / episodes; const 1 / (episodes * max_episode_tokens), which `const` requires (Dr. GRPO,
    2503.20783). Tokens of advantage 0 count; an episode without a trained token (a dummy row) does not.

    Raises ConfigError for an unknown name or a missing constant, LearnerError when no token can be trained.
    """
    tokens = np.asarray(trained_tokens, dtype=np.int64)
    if name not in AGGREGATIONS:
        raise ConfigError(f"aggregation={name!r} is unknown; choose one of {', '.join(AGGREGATIONS)}.")
    if len(tokens) != len(episode_ids):
        raise LearnerError(
            f"{len(tokens)} token counts were given for {len(episode_ids)} episode ids; give one per row."
        )
    if tokens.sum() == 0:
        first = episode_ids[0] if len(episode_ids) else "none, the batch has no rows"
        raise LearnerError(f"No token of the batch can be trained (first trajectory: {first}); check the loss masks.")
    _, episode_of_row = np.unique(np.asarray(episode_ids, dtype=object).astype(str), return_inverse=True)
    episode_tokens = np.bincount(episode_of_row, weights=tokens)
    episodes = int(np.count_nonzero(episode_tokens))
    if name == "token_mean":
        return np.full(len(tokens), 1.0 / tokens.sum())
    if name == "token_sum":
        return np.ones(len(tokens))
    if name == "seq_mean_token_mean":
        return 1.0 / (episodes * np.maximum(episode_tokens, 1)[episode_of_row])
    if name == "seq_mean_token_sum":
        return np.full(len(tokens), 1.0 / episodes)
    if max_episode_tokens is None or max_episode_tokens < 1:
        raise ConfigError(
            f"aggregation='const' needs max_episode_tokens >= 1, not {max_episode_tokens}; "
            "give max_turns * sampling_max_tokens."
        )
    return np.full(len(tokens), 1.0 / (episodes * max_episode_tokens))
