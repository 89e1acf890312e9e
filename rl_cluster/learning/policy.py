"""`PolicyModule`: a causal language model that returns log-probs of the trained positions only.

Inside one forward: the shared prefix of the micro-batch is computed once and its keys and values are extended to all
rows; the vocabulary projection runs on the selected positions alone, in chunks, and once for a token that several rows
share. It must stay inside `forward`, since ZeRO-3 gathers a parameter only while its module runs.

Suffixes: B rows, L padded suffix length, P shared prefix length, S trained tokens over all rows, U different ones of them,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rl_cluster.sequences.batching import MicroBatch

HEAD_CHUNK_BYTES = 32 << 20
"""Of the logits of the positions that are projected onto the vocabulary at once; about five times that much is alive."""

NO_VERSION = -1
"""Marks the token of an empty pass."""


@dataclass
class PolicyInputs:
    """One micro-batch as tensors.

    prefix_ids [P] (P may be 0); suffix_ids [B, L] padded on the right with 0; positions [U]: whose hidden state predicts
    target_ids [U], in the prefix (0 to P - 1) or in the suffixes (from P on, row after row); token_of [S]: which of them is
    each trained token; behaviour_logprobs, advantages, weights [S] float32; versions [S] of the weights that sampled;
    episodes [S], the index of the token's episode in the update.
    """

    prefix_ids: torch.Tensor
    suffix_ids: torch.Tensor
    positions: torch.Tensor
    target_ids: torch.Tensor
    token_of: torch.Tensor
    behaviour_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    versions: torch.Tensor
    episodes: torch.Tensor

    def to(self, device: torch.device) -> PolicyInputs:
        return PolicyInputs(**{name: value.to(device) for name, value in vars(self).items()})


def inputs_from_micro_batch(
    batch: MicroBatch, weights: Sequence[npt.NDArray[np.float64]], episodes: Sequence[int]
) -> PolicyInputs:
    """Tensors of a micro-batch; `weights` holds those of the trained tokens of each row (see algorithms.aggregation), `episodes`
    the index of each row's episode.
    """
    prefix, length = batch.prefix_len, batch.suffix_len
    suffix = np.zeros((len(batch.rows), length), dtype=np.int64)
    places, targets, behaviour, advantages, token_weights, versions, episode = [], [], [], [], [], [], []
    for index, (row, row_weights, episode_index) in enumerate(zip(batch.rows, weights, episodes, strict=True)):
        suffix[index, : len(row) - prefix] = row.token_ids[prefix:]
        trained = np.flatnonzero(row.loss_mask)
        before = trained - 1
        places.append(np.where(before < prefix, before, before + index * length))
        targets.append(row.token_ids[trained])
        behaviour.append(row.behaviour_logprobs[trained])
        advantages.append(row.advantages[trained])
        token_weights.append(row_weights)
        versions.append(row.weight_versions[trained])
        episode.append(np.full(len(trained), episode_index))
    tokens_S2 = np.stack([np.concatenate(places), np.concatenate(targets)], axis=1).astype(np.int64)
    different_U2, token_of = np.unique(tokens_S2, axis=0, return_inverse=True)
    return PolicyInputs(
        prefix_ids=torch.from_numpy(batch.rows[0].token_ids[:prefix].astype(np.int64)),
        suffix_ids=torch.from_numpy(suffix),
        positions=torch.from_numpy(different_U2[:, 0].copy()),
        target_ids=torch.from_numpy(different_U2[:, 1].copy()),
        token_of=torch.from_numpy(token_of.reshape(-1)),
        behaviour_logprobs=torch.from_numpy(np.concatenate(behaviour).astype(np.float32)),
        advantages=torch.from_numpy(np.concatenate(advantages).astype(np.float32)),
        weights=torch.from_numpy(np.concatenate(token_weights).astype(np.float32)),
        versions=torch.from_numpy(np.concatenate(versions).astype(np.int64)),
        episodes=torch.from_numpy(np.concatenate(episode).astype(np.int64)),
    )


def empty_inputs() -> PolicyInputs:
    """A pass with one token and weight 0: a rank without work joins every collective and adds no gradient."""
    zero, one = torch.zeros(1, dtype=torch.long), torch.zeros(1)
    return PolicyInputs(
        prefix_ids=torch.zeros(0, dtype=torch.long),
        suffix_ids=torch.zeros((1, 1), dtype=torch.long),
        positions=zero,
        target_ids=zero,
        token_of=zero,
        behaviour_logprobs=torch.full((1,), float("nan")),
        advantages=one,
        weights=one,
        versions=torch.full((1,), NO_VERSION),
        episodes=zero,
    )


class PolicyModule(nn.Module):
    """Wraps a Hugging Face causal language model; `forward` gives log-probs and entropies [S], float32."""

    def __init__(self, model: Any, temperature: float = 1.0, lockstep: bool = False) -> None:
        """`lockstep`: all ranks call the head equally often, as ZeRO-3 needs, which gathers its weights at each call; a rank
        with fewer positions than the others makes its last calls with none.
        """
        super().__init__()
        self.lockstep = lockstep
        self.model = model
        self.temperature = temperature

    def forward(
        self, inputs: PolicyInputs, temperature: float | None = None, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from transformers import DynamicCache

        body, head = self._body(), self._head()
        rows = inputs.suffix_ids.shape[0]
        cache, hidden = None, []
        if len(inputs.prefix_ids):
            cache = DynamicCache(config=body.config)
            found = body(input_ids=inputs.prefix_ids[None], past_key_values=cache, use_cache=True)
            hidden.append(found.last_hidden_state[0])
            layers: list[Any] = cache.layers
            for layer in layers:
                layer.keys = layer.keys.expand(rows, -1, -1, -1)
                layer.values = layer.values.expand(rows, -1, -1, -1)
        # Padding stands on the right and attention is causal, so no real token ever attends to it.
        found = body(input_ids=inputs.suffix_ids, past_key_values=cache, use_cache=cache is not None)
        hidden.append(found.last_hidden_state.flatten(0, 1))
        selected_UD = torch.cat(hidden)[inputs.positions]
        scale = self.temperature if temperature is None else temperature
        logprobs, entropies = [], []
        size = max(1, HEAD_CHUNK_BYTES // (4 * body.config.vocab_size))
        for index in range(self._num_chunks(selected_UD, size)):
            chunk = slice(index * size, (index + 1) * size)
            arguments = (head, selected_UD[chunk], inputs.target_ids[chunk], scale, entropy_gradient, [])
            if torch.is_grad_enabled():
                logprob, entropy = checkpoint(_project, *arguments, use_reentrant=False)
            else:
                logprob, entropy = _project(*arguments)
            logprobs.append(logprob)
            entropies.append(entropy)
        return torch.cat(logprobs)[inputs.token_of], torch.cat(entropies)[inputs.token_of]

    def _num_chunks(self, selected_UD: torch.Tensor, size: int) -> int:
        chunks = -(-len(selected_UD) // size)
        if not self.lockstep:
            return chunks
        most = torch.tensor(chunks, device=selected_UD.device)
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
        return int(most)

    def _body(self) -> Any:
        inner: Any = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
        return inner.get_decoder() if hasattr(inner, "get_decoder") else inner.model

    def _head(self) -> Any:
        return self.model.get_output_embeddings()


def _project(
    head: Any,
    hidden_SD: torch.Tensor,
    target_ids: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
    known: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """`known` keeps an entropy without gradient, so that computing the logits again for the backward pass skips it."""
    logits_SV = head(hidden_SD).float()
    if temperature != 1.0:
        logits_SV = logits_SV / temperature
    logprobs_SV = torch.log_softmax(logits_SV, dim=-1)
    del logits_SV
    logprob = logprobs_SV.gather(-1, target_ids[:, None])[:, 0]
    if entropy_gradient:
        return logprob, -(logprobs_SV.exp() * logprobs_SV).sum(-1)
    if not known:
        with torch.no_grad():
            known.append(-torch.einsum("sv,sv->s", logprobs_SV.exp(), logprobs_SV))
    return logprob, known[0]
