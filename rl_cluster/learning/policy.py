"""`PolicyModule`: a causal language model that returns log-probs of the trained positions only.

Inside one forward: the shared prefix of the micro-batch is computed once and its keys and values are extended to all
rows; the vocabulary projection runs on the selected positions alone, in chunks. It must stay inside `forward`, since
ZeRO-3 gathers a parameter only while its module runs.

Suffixes: B rows, L padded suffix length, P shared prefix length, S selected positions over all rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
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

    prefix_ids [P] (P may be 0); suffix_ids [B, L] padded on the right with 0; select_row, select_col [S]: suffix
    position whose hidden state predicts target_ids [S]; behaviour_logprobs, advantages, weights [S] float32; versions [S]
    of the weights that sampled; episodes [S], the index of the token's episode in the update.
    """

    prefix_ids: torch.Tensor
    suffix_ids: torch.Tensor
    select_row: torch.Tensor
    select_col: torch.Tensor
    target_ids: torch.Tensor
    behaviour_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    versions: torch.Tensor
    episodes: torch.Tensor

    def to(self, device: torch.device) -> PolicyInputs:
        return PolicyInputs(**{name: value.to(device) for name, value in vars(self).items()})


def inputs_from_micro_batch(batch: MicroBatch, weights: list[float], episodes: list[int]) -> PolicyInputs:
    """Tensors of a micro-batch; `weights` holds one loss weight per row (see algorithms.aggregation), `episodes` the
    index of each row's episode.
    """
    prefix, length = batch.prefix_len, batch.suffix_len
    suffix = np.zeros((len(batch.rows), length), dtype=np.int64)
    rows, cols, targets, behaviour, advantages, token_weights, versions, episode = [], [], [], [], [], [], [], []
    for index, (row, weight, episode_index) in enumerate(zip(batch.rows, weights, episodes, strict=True)):
        suffix[index, : len(row) - prefix] = row.token_ids[prefix:]
        trained = np.flatnonzero(row.loss_mask)
        rows.append(np.full(len(trained), index))
        cols.append(trained - prefix - 1)
        targets.append(row.token_ids[trained])
        behaviour.append(row.behaviour_logprobs[trained])
        advantages.append(row.advantages[trained])
        token_weights.append(np.full(len(trained), weight))
        versions.append(row.weight_versions[trained])
        episode.append(np.full(len(trained), episode_index))
    return PolicyInputs(
        prefix_ids=torch.from_numpy(batch.rows[0].token_ids[:prefix].astype(np.int64)),
        suffix_ids=torch.from_numpy(suffix),
        select_row=torch.from_numpy(np.concatenate(rows)),
        select_col=torch.from_numpy(np.concatenate(cols)),
        target_ids=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
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
        select_row=zero,
        select_col=zero,
        target_ids=zero,
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
        cache = None
        if len(inputs.prefix_ids):
            cache = DynamicCache(config=body.config)
            body(input_ids=inputs.prefix_ids[None], past_key_values=cache, use_cache=True)
            layers: list[Any] = cache.layers
            for layer in layers:
                layer.keys = layer.keys.expand(rows, -1, -1, -1)
                layer.values = layer.values.expand(rows, -1, -1, -1)
        # Padding stands on the right and attention is causal, so no real token ever attends to it.
        hidden_BLD = body(
            input_ids=inputs.suffix_ids, past_key_values=cache, use_cache=cache is not None
        ).last_hidden_state
        selected_SD = hidden_BLD[inputs.select_row, inputs.select_col]
        scale = self.temperature if temperature is None else temperature
        logprobs, entropies = [], []
        size = max(1, HEAD_CHUNK_BYTES // (4 * body.config.vocab_size))
        for index in range(self._num_chunks(selected_SD, size)):
            chunk = slice(index * size, (index + 1) * size)
            arguments = (head, selected_SD[chunk], inputs.target_ids[chunk], scale, entropy_gradient, [])
            if torch.is_grad_enabled():
                logprob, entropy = checkpoint(_project, *arguments, use_reentrant=False)
            else:
                logprob, entropy = _project(*arguments)
            logprobs.append(logprob)
            entropies.append(entropy)
        return torch.cat(logprobs), torch.cat(entropies)

    def _num_chunks(self, selected_SD: torch.Tensor, size: int) -> int:
        chunks = -(-len(selected_SD) // size)
        if not self.lockstep:
            return chunks
        most = torch.tensor(chunks, device=selected_SD.device)
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
