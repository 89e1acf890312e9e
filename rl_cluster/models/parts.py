"""A model's configuration and tokenizer, read so that a folder in which one of them is broken is answered in one sentence, and the
size of its weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rl_cluster.errors import ConfigError, ModelError

BYTES = {"float32": 4, "bfloat16": 2}
"""Of a number, by `model.dtype`."""


def configuration_and_tokenizer(path: str, setting: str) -> tuple[Any, Any]:
    """Of a folder or hub id that `setting` names. Raises ModelError where one cannot be read, or the hub does not give it."""
    from transformers import AutoConfig, AutoTokenizer

    part = "configuration"
    try:
        configuration = AutoConfig.from_pretrained(path, trust_remote_code=False)
        part = "tokenizer"
        return configuration, AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises nothing more special
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ModelError(
            f"{setting}={path}: its {part} cannot be read ({reason}); give a folder that save_pretrained() wrote, or a hub id."
        ) from error


def positions_of(configuration: Any) -> int | None:
    """The longest sequence that the language model of a configuration has positions for; None where it does not say."""
    return getattr(configuration.get_text_config(), "max_position_embeddings", None)


_CPU_BLOCK = 128
"""Tokens of a block in which vLLM keeps keys and values on a CPU."""


def check_cache(configuration: Any, model: str, dtype: str, tokens: int, cache_gib: float | None, parts: int) -> None:
    """Raises ConfigError where the cache of an engine on a CPU cannot hold one sequence of `tokens`; `parts`: over how many
    processes the model is cut. None as `cache_gib` is a cache of another kind.

    The need is blocks * tokens * layers * 2 * heads * head size * bytes, with one block that vLLM keeps for itself. Of layers with other
    caches than full attention's, and of models that do not say their heads, nothing is counted: vLLM itself refuses those.
    """
    if cache_gib is None:
        return
    text = configuration.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        return
    heads = getattr(text, "num_attention_heads", None)
    size = getattr(text, "head_dim", None) or (getattr(text, "hidden_size", 0) // heads if heads else 0)
    pairs = getattr(text, "num_key_value_heads", None) or heads or 0
    kinds = getattr(text, "layer_types", None)
    layers = kinds.count("full_attention") if kinds else getattr(text, "num_hidden_layers", 0)
    per_token = layers * 2 * math.ceil(pairs / parts) * size * BYTES[dtype]
    need_gib = (math.ceil(tokens / _CPU_BLOCK) + 1) * _CPU_BLOCK * per_token / (1 << 30)
    if cache_gib < need_gib:
        raise ConfigError(
            f"rollout.kv_cache_gib={cache_gib:g} does not hold one sequence of rollout.max_sequence_length="
            f"{tokens} tokens of {model}; set it to {math.ceil(need_gib * 1000) / 1000:g} at least, to more for several "
            "at once, or lower max_sequence_length."
        )


_AFTER_HEAD = {"final_logit_softcapping": None, "logits_scaling": 1, "logit_scale": 1}
"""What some models do to logits after the head, by the setting's name, with the value that does nothing."""
_SHAREABLE = {"full_attention", "sliding_attention"}


def check_learnable(configuration: Any, model: str, share_prefix: bool) -> None:
    """Raises ConfigError for a model whose log-probs the learner would not compute as the model does, or whose layers cannot
    share a prefix where that is asked for."""
    text = configuration.get_text_config()
    for name, harmless in _AFTER_HEAD.items():
        value = getattr(text, name, None)
        if value not in (None, harmless):
            raise ConfigError(
                f"model.name={model} changes its logits after the head ({name}={value}), which the learner does not; choose a model without."
            )
    other = sorted(set(getattr(text, "layer_types", None) or ()) - _SHAREABLE)
    if share_prefix and other:
        raise ConfigError(
            f"learner.share_prefix=true, but model.name={model} has layers of {other[0]}, which keep no keys to share; set learner.share_prefix=false."
        )


def weight_bytes(folder: Path, dtype: str, setting: str) -> int:
    """Bytes of the weights of a folder that `setting` names, once they are in `dtype` ("float32", "bfloat16"): as many as the headers of
    its safetensors files declare numbers. Raises ModelError where a file is cut or has no header."""
    from safetensors import SafetensorError, safe_open

    numbers = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np") as tensors:
                numbers += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise ModelError(f"{setting}={folder}: {file.name} is cut or damaged ({error}); copy it again.") from error
    return numbers * BYTES[dtype]
