"""A model's configuration and tokenizer, read so that a folder in which one of them is broken is answered in one sentence, and the
size of its weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rl_cluster.errors import ModelError

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


def weight_bytes(folder: Path, dtype: str) -> int:
    """Bytes of a folder's weights once they are in `dtype` ("float32", "bfloat16"): as many as its safetensors files declare
    numbers. A file that declares none, being damaged, counts with its own size."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="np") as tensors:
                numbers = sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        except SafetensorError:
            total += file.stat().st_size
        else:
            total += numbers * BYTES[dtype]
    return total
