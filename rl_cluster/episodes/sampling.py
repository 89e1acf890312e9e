"""What is asked of an engine and what it gives back; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingSettings:
    """Temperature 0 is greedy. `max_tokens` is per request; `ignore_eos` gives exactly as many, for measurements."""

    temperature: float
    top_p: float
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool = False


@dataclass(frozen=True)
class Sample:
    """What one request gave; `token_ids`, `logprobs` and `weight_versions` have one length."""

    token_ids: list[int]
    logprobs: list[float]
    weight_versions: list[int]
    finish_reason: str
    queue_s: float
    prefill_s: float
    decode_s: float
    mixed_cache_tokens: int
