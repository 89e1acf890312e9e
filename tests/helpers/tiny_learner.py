"""A learner rank over a tiny random model, for tests that run it in processes of their own.

DeepSpeed keeps its process group for as long as its process lives, so one process serves many ranks after each other
in the one group that it started with.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from rl_cluster.learning.settings import LearnerSettings, LoraSettings, UpdateSettings
from rl_cluster.sequences.row import TrainingRow

VOCABULARY = 128
SETTINGS = LearnerSettings(
    model_path="",
    learning_rate=1.0,
    schedule="constant",
    lr_warmup_steps=0,
    total_steps=10,
    adam_beta1=0.9,
    adam_beta2=0.95,
    # So large that a step is nearly the learning rate times the gradient over it: parameters show the gradient itself.
    adam_eps=10.0,
    weight_decay=0.0,
    grad_clip_norm=0.0,
    zero_stage=0,
    micro_batch_tokens=256,
    share_prefix=False,
    gradient_checkpointing=False,
    dtype="float32",
    device="cpu",
    temperature=1.0,
    lora=LoraSettings(),
    num_threads=1,
    seed=0,
    rendezvous_timeout_s=30.0,
)
UPDATE = UpdateSettings(
    loss="importance_sampling",
    clip_low=0.0,
    clip_high=1e9,
    dual_clip=None,
    aggregation="token_mean",
    max_episode_tokens=64,
)


def save_tiny_model(folder: Path, tied: bool, tokenizer: bool = True) -> None:
    """A random Llama of 2 layers with large weights, so that gradients are far from 0, and a tokenizer of words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    if tokenizer:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel

        words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
        fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", unk_token="w0")
        fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        fast.save_pretrained(folder)


def save_moved_model(model: Path, folder: Path) -> None:
    """The same model with every weight a twentieth larger."""
    import torch
    from transformers import AutoModelForCausalLM

    moved = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.mul_(1.05)
    moved.save_pretrained(folder)


def make_rows(groups: int = 2, per_group: int = 3, seed: int = 0, prefix: int = 20) -> list[TrainingRow]:
    """Rows of several turns; the rows of a group share a prompt long enough to be computed once."""
    random = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        prompt = random.integers(2, VOCABULARY, prefix)
        for member in range(per_group):
            length = int(random.integers(8, 24))
            mask = np.concatenate([np.zeros(prefix, bool), random.random(length) < 0.6])
            mask[prefix + 2] = True
            size = prefix + length
            advantage = float(random.normal()) + 0.1
            rows.append(
                TrainingRow(
                    trajectory_id=f"t{group}-{member}",
                    group_id=f"g{group}",
                    token_ids=np.concatenate([prompt, random.integers(2, VOCABULARY, length)]).astype(np.int32),
                    loss_mask=mask,
                    behaviour_logprobs=np.where(mask, -4.8 + 0.3 * random.normal(size=size), 0).astype(np.float32),
                    weight_versions=np.where(mask, 0, -1).astype(np.int32),
                    advantages=np.where(mask, advantage, 0).astype(np.float32),
                    turn_index=np.zeros(size, np.int16),
                )
            )
    return rows


def make_rows_alike(alike: int, seed: int = 0) -> list[TrainingRow]:
    """Rows of two groups whose members sampled their first `alike` ids alike; the last of each group is its first once more,
    with other log-probs, advantages and trained tokens."""
    rows = make_rows(groups=2, per_group=4, seed=seed)
    random = np.random.default_rng(seed + 1)
    for first in (0, 4):
        for row in rows[first + 1 : first + 3]:
            end = min(20 + alike, len(row), len(rows[first]))
            row.token_ids[20:end] = rows[first].token_ids[20:end]
        mask = rows[first].loss_mask & (random.random(len(rows[first])) < 0.7)
        mask[22] = True
        rows[first + 3] = replace(
            rows[first],
            trajectory_id=rows[first + 3].trajectory_id,
            loss_mask=mask,
            behaviour_logprobs=np.where(mask, -4.5, 0).astype(np.float32),
            advantages=np.where(mask, -0.4, 0).astype(np.float32),
        )
    return rows


@contextmanager
def learner_rank(model: Path | str, rank: int = 0, world_size: int = 1, port: int = 0, **changes: Any) -> Iterator[Any]:
    """A rank that has met the others. Later ranks of a process go on in the process group of its first."""
    import torch.distributed

    from rl_cluster.learning.rank import LearnerRank

    settings = replace(SETTINGS, model_path=str(model), **changes)
    learner = LearnerRank(settings, rank, world_size, ("127.0.0.1", port))
    if torch.distributed.is_initialized():
        with patch.object(torch.distributed, "init_process_group"):
            learner.setup()
    else:
        learner.setup()
    yield learner


def parameters(learner: Any) -> dict[str, np.ndarray]:
    """Copies of the merged weights under their Hugging Face names."""
    from rl_cluster.learning.export import merged_tensors

    tensors = merged_tensors(learner.engine.module.model, learner.settings.zero_stage)
    return {name: tensor.double().numpy().copy() for name, tensor in tensors}


def expected_gradients(
    model: Path, rows: list[TrainingRow], temperature: float = 1.0
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of importance sampling under token_mean, one row at a time, plain PyTorch in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager")
    count = sum(row.num_trained for row in rows)
    loss = torch.zeros((), dtype=torch.float64)
    for row in rows:
        ids = torch.tensor(row.token_ids, dtype=torch.long)
        logits = policy(input_ids=ids[None]).logits[0, :-1] / temperature
        logprobs = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0]
        mask = torch.tensor(row.loss_mask[1:])
        ratio = torch.exp(logprobs - torch.tensor(row.behaviour_logprobs[1:], dtype=torch.float64))
        loss = loss - (ratio * torch.tensor(row.advantages[1:], dtype=torch.float64))[mask].sum() / count
    loss.backward()
    return float(loss.detach()), {n: p.grad.numpy() for n, p in policy.named_parameters() if p.grad is not None}


def first_step(gradient: np.ndarray) -> np.ndarray:
    """AdamW's first step in closed form: the bias-corrected moments are the gradient and its square."""
    return SETTINGS.learning_rate * gradient / (np.abs(gradient) + SETTINGS.adam_eps)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _watched(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function; where it takes longer than that, its stack is written to the standard error."""
    faulthandler.dump_traceback_later(seconds)
    try:
        return function(*arguments)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Processes:
    """One process a rank, kept for many calls. A call that passes its deadline fails; its processes are ended and others follow."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.pools = self._start()

    def _start(self) -> list[ProcessPoolExecutor]:
        context = multiprocessing.get_context("spawn")
        return [ProcessPoolExecutor(1, mp_context=context) for _ in range(self.world_size)]

    def call(self, deadline_s: float, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """function(rank, world_size, port, *arguments) in every process; their results in the order of ranks."""
        port = free_port()
        futures = [
            pool.submit(_watched, 0.9 * deadline_s, function, rank, self.world_size, port, *arguments)
            for rank, pool in enumerate(self.pools)
        ]
        try:
            return [future.result(timeout=deadline_s) for future in futures]
        except (TimeoutError, BrokenProcessPool):
            self.close()
            self.pools = self._start()
            raise

    def close(self) -> None:
        for pool in self.pools:
            children: Sequence[Any] = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.kill()


def largest_gap(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Over all parameters of two models of the same names."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def file_tensors(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return {name: tensor.astype(np.float64) for name, tensor in load_file(folder / "model.safetensors").items()}
