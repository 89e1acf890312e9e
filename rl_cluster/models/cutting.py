"""The beginning of a text that decides on its first tokens: a tokenizer reads all of what it is given before it cuts."""

from __future__ import annotations

from typing import Any

CHARACTERS_PER_TOKEN = 64
"""More than the tokens of any language have; runs of blanks, lines and encoded data may have more."""
_MARGIN = 32
"""Tokens after those that count, so that a word which the cut divides is none of these."""


def beginning(text: str, tokenizer: Any, max_tokens: int) -> str:
    """As much of `text` as has the same first `max_tokens` tokens; all of it for a tokenizer that does not count."""
    size = CHARACTERS_PER_TOKEN * max_tokens
    if len(text) <= size or not callable(tokenizer):
        return text
    tokenize: Any = tokenizer
    enough = max_tokens + _MARGIN
    while size < len(text) and len(tokenize(text[:size], truncation=True, max_length=enough)["input_ids"]) < enough:
        size *= 8
    return text[:size]
