"""Words and parts of a document, with their places in its text.

In scripts without spaces two characters count as a word, and so do 80 characters without a gap: a budget in words is a
budget for text in any language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice, pairwise

from rl_cluster.retrieval.scripts import UNSPACED

PART_WORDS = 200
LONG_TEXT = 65_536
"""Characters over which a text is never analysed whole to answer a search; its parts are then kept in the index."""
_WORD = re.compile(f"[{UNSPACED}]{{1,2}}|[^\\s{UNSPACED}]{{1,80}}")
# Ends of sentences in Latin, Han, Devanagari and Arabic scripts, and what may close after them.
_SENTENCE_END = re.compile("[.!?\u2026\u3002\uff01\uff1f\u0964\u061f\u06d4][\"'\u201d\u2019\u00bb)\\]]*$")


@dataclass(frozen=True)
class Passage:
    """A part of a document: its number from 1, and where it starts and ends in the text (in characters)."""

    number: int
    start: int
    end: int


def words_of(text: str, start: int = 0, stop: int | None = None) -> list[str]:
    """The words between `start` and `stop`, in characters of the text."""
    return _WORD.findall(text, start, len(text) if stop is None else stop)


def word_span(text: str, number: int, bounds: tuple[int, int]) -> tuple[int, int]:
    """(start, end) of one of the words of `words_of` between these bounds, numbered from 0, in characters of the text."""
    return next(islice(_WORD.finditer(text, *bounds), number, None)).span()


def passages(text: str, max_words: int = PART_WORDS, num_words: int | None = None) -> list[Passage]:
    """The text in parts of at most `max_words` words, without gaps or overlaps; an empty text has one empty part.

    A part ends with a sentence where one ends in its second half. `num_words`: of the text, where they are counted.
    """
    if num_words is not None and num_words <= max_words:
        return [Passage(1, 0, len(text))]
    spans = [match.span() for match in _WORD.finditer(text)]
    bounds = [0]
    first = 0
    while len(spans) - first > max_words:
        last = first + max_words - 1
        ends = range(last, first + max_words // 2, -1)
        last = next((i for i in ends if _SENTENCE_END.search(text[slice(*spans[i])])), last)
        first = last + 1
        bounds.append(spans[first][0])
    bounds.append(len(text))
    return [Passage(number, *pair) for number, pair in enumerate(pairwise(bounds), start=1)]
