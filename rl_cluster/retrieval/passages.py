"""Words and parts of a document, with their places in its text.

In scripts without spaces two characters count as a word, and so do 80 characters without a gap: a budget in words is a
budget for text in any language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice, pairwise

from rl_cluster.datasets.scripts import UNSPACED

PART_WORDS = 200
LONG_TEXT = 65_536
"""Characters over which a text is never analysed whole to answer a search; its parts are then kept in the index."""
_LONGEST_WORD = 80
_WORD = re.compile(f"[{UNSPACED}]{{1,2}}|[^\\s{UNSPACED}]{{1,{_LONGEST_WORD}}}")
# Ends of sentences in Latin, Han, Devanagari and Arabic scripts, and what may close after them.
_SENTENCE_END = re.compile("[.!?\u2026\u3002\uff01\uff1f\u0964\u061f\u06d4][\"'\u201d\u2019\u00bb)\\]]*$")


@dataclass(frozen=True)
class Passage:
    """A part of a document: its number from 1, and where it starts and ends in the text (in characters)."""

    number: int
    start: int
    end: int


class Words:
    """The words between `start` and `stop`, in characters of a text, and where they stand there."""

    __slots__ = ("_plain", "_text", "found", "start", "stop")

    def __init__(self, text: str, start: int = 0, stop: int | None = None):
        self.start = start
        self.stop = len(text) if stop is None else stop
        # Most text has no more to it than white space between words; splitting is several times as fast as matching.
        plain = text.isascii()
        if plain:
            self._text = text[start : self.stop]
            self.found = self._text.split()
            plain = not self.found or max(map(len, self.found)) <= _LONGEST_WORD
        if not plain:
            self._text = text
            self.found = _WORD.findall(text, start, self.stop)
        self._plain = plain

    def __len__(self) -> int:
        return len(self.found)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """(start, end) in characters of the text: where the word `first` starts and the word `last` ends, both from 0."""
        if not self._plain:
            spans = list(islice(_WORD.finditer(self._text, self.start, self.stop), first, last + 1))
            return spans[0].start(), spans[-1].end()
        rest = self._text.split(None, first)[-1]
        tail = rest.split(None, last - first)[-1]
        size = len(self._text)
        return self.start + size - len(rest), self.start + size - len(tail) + len(self.found[last])


def passages(text: str, max_words: int = PART_WORDS) -> list[Passage]:
    """The text in parts of at most `max_words` words, without gaps or overlaps; an empty text has one empty part.

    A part ends with a sentence where one ends in its second half.
    """
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
