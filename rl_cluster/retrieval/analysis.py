"""Text -> tokens for word search.

Words are runs of Unicode letters, digits and their combining marks, case-folded. A run that is joined by `-`, `_`,
`.`, `/` or `:` and looks like an identifier (`PRJ-4411-B`, `v2.3.1`, `E_TIMEOUT`) gives one token for the whole and one
for each part, so that it is found exactly and by its parts. Scripts without spaces between words are not segmented.
"""

from __future__ import annotations

import re
import sys
import threading
import unicodedata
from dataclasses import dataclass

import Stemmer
from bm25s.stopwords import STOPWORDS_EN


def _mark_ranges() -> str:
    """Combining marks as a character class: Python's `\\w` leaves them out, which would cut Indic words in pieces."""
    ranges: list[list[int]] = []
    for code in range(0x300, min(sys.maxunicode, 0xFFFF)):
        if unicodedata.category(chr(code)) in ("Mn", "Mc"):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"\\u{low:04x}-\\u{high:04x}" for low, high in ranges)


_WORD = f"(?:[^\\W_]|[{_mark_ranges()}])+"
_RUN = re.compile(f"{_WORD}(?:[-_./:]{_WORD})*")
_PART = re.compile(_WORD)
_STOP_WORDS = frozenset(STOPWORDS_EN)


@dataclass(frozen=True)
class AnalysisSettings:
    """`stem`: English Snowball stemming of plain words; `stop_words`: leave out the most common English words."""

    stem: bool = True
    stop_words: bool = True


def is_identifier(run: str) -> bool:
    """True for a run of joined parts that has a digit, an underscore, or capitals only."""
    joined = any(mark in run for mark in "-_./:")
    return joined and (any(char.isdigit() for char in run) or "_" in run or run.isupper())


class Analyzer:
    """Turns text into tokens; may be shared between threads."""

    def __init__(self, settings: AnalysisSettings | None = None):
        self.settings = settings or AnalysisSettings()
        self._local = threading.local()

    def tokens(self, text: str) -> list[str]:
        """Tokens in the order of the text; the whole of an identifier comes before its parts."""
        found: list[str] = []
        for match in _RUN.finditer(unicodedata.normalize("NFKC", text)):
            run = match.group()
            if is_identifier(run):
                found.append(run.casefold())
            for part in _PART.findall(run):
                word = part.casefold()
                if self.settings.stop_words and word in _STOP_WORDS:
                    continue
                found.append(word)
        return self._stemmed(found) if self.settings.stem else found

    def _stemmed(self, words: list[str]) -> list[str]:
        # A Snowball stemmer keeps state between calls, so each thread has its own.
        stemmer = getattr(self._local, "stemmer", None)
        if stemmer is None:
            stemmer = self._local.stemmer = Stemmer.Stemmer("english")
        return [stemmer.stemWord(word) if word.isalpha() else word for word in words]
