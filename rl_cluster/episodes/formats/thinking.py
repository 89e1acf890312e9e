"""Thinking aloud is neither a call nor an answer."""

from __future__ import annotations

import re

_CLOSED = re.compile(r"<think>.*?</think>", re.DOTALL)


def without_thinking(text: str) -> str:
    """What is said outside of <think> tags. A template may have opened the first tag already, and a reply may end inside
    one.
    """
    spoken = _CLOSED.sub("", text)
    spoken = spoken.rpartition("</think>")[2]
    return spoken.partition("<think>")[0]
