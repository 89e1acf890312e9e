"""Thinking aloud is neither a call nor an answer."""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"


def without_thinking(text: str) -> str:
    """What is said outside of <think> tags. A template may have opened the first tag already, and a reply may end inside
    one.
    """
    spoken, place = [], 0
    # By places and not by a pattern, which would look for the end of each of many open tags through all of the rest.
    while (opened := text.find(_OPEN, place)) >= 0 and (closed := text.find(_CLOSE, opened)) >= 0:
        spoken.append(text[place:opened])
        place = closed + len(_CLOSE)
    spoken.append(text[place:])
    return "".join(spoken).rpartition(_CLOSE)[2].partition(_OPEN)[0]
