"""The policy that a learner trains, as its settings describe it."""

from __future__ import annotations

from typing import Any

import torch

from rl_cluster.errors import ModelError
from rl_cluster.learning.settings import LearnerSettings


def load_policy(settings: LearnerSettings) -> tuple[Any, Any]:
    """The model, with adapters where they are asked for, and its tokenizer. Raises ModelError."""
    from transformers import AutoTokenizer

    model = load_causal_model(settings.model_path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{settings.model_path} has no tokenizer that can be loaded: {error}") from error
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if settings.lora.rank:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model,
            LoraConfig(
                r=settings.lora.rank,
                lora_alpha=settings.lora.alpha,
                lora_dropout=settings.lora.dropout,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            ),
        )
    return model, tokenizer


def load_causal_model(folder: str) -> Any:
    """A causal language model in float32. Raises ModelError."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} cannot be loaded as a causal language model: {error}") from error
