"""Embedding several texts at once so that each row is what the text gives alone, bit for bit.

Matrix products choose their order of summation by the shape of what they are given, so that a row's last digits change with
the texts beside it. From sixteen rows on they do not: each text is padded to a multiple of sixteen tokens and goes with texts
of its own padded length. Whether that holds for a model on a machine is tried out before it is relied on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_STEP = 16
_PROBES = (
    "pump",
    "how is the pump restarted after a power cut in the north wing of the greenhouse, and by whom",
    "pump 7",
)


def can_batch(model: Any, max_tokens: int, positions: int | None = None) -> bool:
    """Whether a sentence-transformers model gives equal rows alone and in batches, on this machine.

    `positions`: how many it has, where that is known; texts of `max_tokens` are padded to a multiple of sixteen.
    """
    if positions is not None and _padded(max_tokens) > positions:
        return False
    if getattr(model, "default_prompt_name", None) is not None or not callable(getattr(model, "tokenizer", None)):
        return False
    texts = [*_PROBES, *_PROBES, *_PROBES]
    alone = np.concatenate([encode_steady(model, [text], max_tokens) for text in _PROBES])
    return bool(np.array_equal(encode_steady(model, texts, max_tokens), np.tile(alone, (3, 1))))


def _padded(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP


def encode_steady(model: Any, texts: Sequence[str], max_tokens: int) -> np.ndarray:
    """float32 `[texts, dimensions]`, each row of length 1; `max_tokens` cuts longer texts."""
    import torch

    ids = model.tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
    groups: dict[int, list[int]] = {}
    for place, tokens in enumerate(ids):
        groups.setdefault(_padded(len(tokens)), []).append(place)
    rows: list[Any] = [None] * len(ids)
    for length, places in groups.items():
        features = model.tokenizer.pad(
            {"input_ids": [ids[place] for place in places]},
            padding="max_length",
            max_length=length,
            return_tensors="pt",
        )
        with torch.inference_mode():
            found = model({name: values.to(model.device) for name, values in features.items()})["sentence_embedding"]
        for place, row in zip(places, found.float().cpu().numpy(), strict=True):
            rows[place] = row
    vectors = np.stack(rows).astype(np.float64)
    vectors /= np.maximum(np.sqrt((vectors * vectors).sum(axis=1, keepdims=True)), 1e-12)
    return vectors.astype(np.float32)
