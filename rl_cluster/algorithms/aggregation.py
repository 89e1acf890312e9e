"""How token terms become one number: a weight per token, fixed over the whole optimiser batch before any backward pass.

With these weights the loss is the plain sum of weight times term, so that it does not depend on how rows are spread
over micro-batches and ranks, nor on how an episode is split into rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rl_cluster.errors import ConfigError, LearnerError

AGGREGATIONS = ("token_mean", "token_sum", "seq_mean_token_mean", "seq_mean_token_sum", "turn_mean", "const")


def token_weights(
    name: str,
    turns: Sequence[npt.NDArray[np.integer]],
    episode_ids: Sequence[str],
    max_episode_tokens: int | None = None,
) -> list[npt.NDArray[np.float64]]:
    """The weights of the trained tokens of each row, given the turn of each of them (one array a row) and the rows' episodes [R].

    token_mean 1 / all tokens; token_sum 1; seq_mean_token_mean 1 / (episodes * tokens of the episode);
    seq_mean_token_sum 1 / episodes; turn_mean 1 / (episodes * turns of the episode * tokens of the turn) (WebAgent-R1,
    2505.16421); const 1 / (episodes * max_episode_tokens), which `const` requires (Dr. GRPO, 2503.20783). Tokens of advantage 0 count; an episode without a trained token (a dummy row) does not.

    Raises ConfigError for an unknown name or a missing constant, LearnerError when no token can be trained.
    """
    tokens = np.array([len(row) for row in turns], dtype=np.int64)
    if name not in AGGREGATIONS:
        raise ConfigError(f"aggregation={name!r} is unknown; choose one of {', '.join(AGGREGATIONS)}.")
    if len(tokens) != len(episode_ids):
        raise LearnerError(
            f"The tokens of {len(tokens)} rows were given for {len(episode_ids)} episode ids; give one id per row."
        )
    if tokens.sum() == 0:
        first = episode_ids[0] if len(episode_ids) else "none, the batch has no rows"
        raise LearnerError(f"No token of the batch can be trained (first trajectory: {first}); check the loss masks.")
    _, episode_of_row = np.unique(np.asarray(episode_ids, dtype=object).astype(str), return_inverse=True)
    episode_tokens = np.bincount(episode_of_row, weights=tokens)
    episodes = int(np.count_nonzero(episode_tokens))
    if name == "token_mean":
        return _same(tokens, 1.0 / tokens.sum())
    if name == "token_sum":
        return _same(tokens, 1.0)
    if name == "seq_mean_token_mean":
        return _same(tokens, 1.0 / (episodes * np.maximum(episode_tokens, 1)[episode_of_row]))
    if name == "seq_mean_token_sum":
        return _same(tokens, 1.0 / episodes)
    if name == "turn_mean":
        return _turn_means(tokens, np.concatenate(turns), np.repeat(episode_of_row, tokens), episodes)
    if max_episode_tokens is None or max_episode_tokens < 1:
        raise ConfigError(
            f"aggregation='const' needs max_episode_tokens >= 1, not {max_episode_tokens}; "
            "give max_turns * sampling_max_tokens."
        )
    return _same(tokens, 1.0 / (episodes * max_episode_tokens))


def _same(tokens: npt.NDArray[np.int64], weights: npt.ArrayLike) -> list[npt.NDArray[np.float64]]:
    """One weight for all tokens of a row; `weights` [R] or one for all."""
    each = np.broadcast_to(np.asarray(weights, dtype=np.float64), tokens.shape)
    return [np.full(count, weight) for count, weight in zip(tokens, each, strict=True)]


def _turn_means(
    tokens: npt.NDArray[np.int64],
    turn_of_token: npt.NDArray[np.integer],
    episode_of_token: npt.NDArray[np.int64],
    episodes: int,
) -> list[npt.NDArray[np.float64]]:
    pairs = np.stack([episode_of_token, turn_of_token], axis=1)
    different, place, size = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    place = place.reshape(-1)
    turns_of_episode = np.bincount(different[:, 0])
    weights = 1.0 / (episodes * turns_of_episode[episode_of_token] * size[place])
    return np.split(weights, np.cumsum(tokens)[:-1])
