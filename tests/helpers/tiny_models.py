"""Tiny models with random weights of real families, with the bundled model's tokenizer and a template of the family."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.templates import HERMES, LLAMA3

FAMILIES = ("llama", "qwen3", "smollm2")


def write_tiny_model(family: str, folder: Path, seed: int = 0) -> Path:
    """Saves a two-layer model with its tokenizer. `llama` has an untied head, the others tie it to the embedding."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    from rl_cluster.models.source import bundled_policy

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(str(bundled_policy()))
    if family == "qwen3":
        tokenizer.chat_template = HERMES
    if family == "llama":
        names = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]
        tokenizer.add_special_tokens({"additional_special_tokens": names})
        tokenizer.chat_template = LLAMA3
        tokenizer.eos_token = "<|eot_id|>"
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    if family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=64, tie_word_embeddings=True))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=family == "smollm2"))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
