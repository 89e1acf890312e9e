"""What the learner must know of a model's configuration before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from rl_cluster.errors import ConfigError
from rl_cluster.models.parts import check_cache, check_learnable, positions_of


def configuration(model_type: str, **changes: Any) -> Any:
    return AutoConfig.for_model(model_type, **changes)


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("gemma2", {}, "final_logit_softcapping=30.0"),
        ("granite", {"logits_scaling": 8.0}, "logits_scaling=8.0"),
        ("cohere", {}, "logit_scale=0.0625"),
    ],
)
def test_check_learnable_model_that_changes_its_logits_is_refused(
    model_type: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.name=m changes its logits after the head \({words}\)"):
        check_learnable(configuration(model_type, **changes), "m", share_prefix=False)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gemma3_text", "granite"])
def test_check_learnable_model_of_attention_alone_passes(model_type: str) -> None:
    check_learnable(configuration(model_type), "m", share_prefix=True)


def test_check_learnable_layers_without_keys_share_no_prefix() -> None:
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    hybrid = configuration("qwen3_next", **layers)
    check_learnable(hybrid, "m", share_prefix=False)
    with pytest.raises(ConfigError, match=r"layers of linear_attention, .* set learner\.share_prefix=false"):
        check_learnable(hybrid, "m", share_prefix=True)


def test_positions_of_a_nested_configuration_are_those_of_its_text() -> None:
    nested = configuration("gemma3")
    assert not hasattr(nested, "max_position_embeddings")
    assert positions_of(nested) == nested.text_config.max_position_embeddings
    assert positions_of(configuration("llama", max_position_embeddings=77)) == 77


@pytest.mark.parametrize(
    ("model_type", "changes", "dtype", "numbers_per_token"),
    [
        ("llama", {"num_key_value_heads": 1}, "float32", 2 * 2 * 64),
        ("qwen3", {"num_key_value_heads": 2, "head_dim": 32}, "bfloat16", 2 * 2 * 2 * 32),
        ("gpt2", {}, "float32", 2 * 2 * 128),
        ("qwen3_next", {"layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": 1, "head_dim": 64}, "float32", 2 * 64),
    ],
)  # fmt: skip
def test_check_cache_that_holds_no_sequence_is_refused_with_the_least_that_does(
    model_type: str, changes: dict[str, Any], dtype: str, numbers_per_token: int
) -> None:
    """A thousand tokens are eight blocks of 128; vLLM keeps a ninth. An engine starts with nine blocks, and does not with eight."""
    model = configuration(model_type, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, **changes)
    enough = 9 * 128 * numbers_per_token * {"float32": 4, "bfloat16": 2}[dtype] / (1 << 30)
    check_cache(model, "m", dtype, 1000, enough, 1)
    with pytest.raises(
        ConfigError,
        match=r"does not hold one sequence of rollout\.max_sequence_length=1000 tokens of m; set it to 0\.00",
    ):
        check_cache(model, "m", dtype, 1000, enough * 0.99, 1)
    check_cache(model, "m", dtype, 1000, None, 1)
