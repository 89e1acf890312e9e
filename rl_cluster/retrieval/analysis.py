"""Text -> tokens for word search.

Words are runs of Unicode letters, digits and their combining marks, case-folded, without format characters. A run that is joined by `-`, `_`,
`.`, `/` or `:` and looks like an identifier (`PRJ-4411-B`, `v2.3.1`, `E_TIMEOUT`) gives one token for the whole and one
for each part, so that it is found exactly and by its parts. Scripts without spaces between words (Chinese, Japanese,
Thai, ...) and Korean give every character and every pair of neighbours: a pair stands for a word, and a word of one
character stays findable.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rl_cluster.datasets.scripts import FORMAT, JOINERS, SPACED, UNSPACED
from rl_cluster.datasets.text import clean
from rl_cluster.errors import ConfigError
from rl_cluster.retrieval.languages import LANGUAGES, STEMMERS, STOP_WORDS, UNMARKED

PLAIN_ANALYZERS = ("words", "whitespace")
ANALYZERS = (*PLAIN_ANALYZERS, *LANGUAGES)
BUILD_CACHED_RUNS = 100_000
SEARCH_CACHED_RUNS = 8192
"""Building sees all words, and often; questions and snippets see few, in a process whose memory counts."""
LONGEST_CACHED_RUN = 64
_CHARACTERS_PER_CACHED_RUN = 16
"""Text without spaces comes in long runs, with two tokens for each character, that hardly ever come again."""

_RUN = re.compile(f"[{SPACED}]+(?:[-_./:][{SPACED}]+)*|[{UNSPACED}]+")
_ASCII_RUN = re.compile("[A-Za-z0-9]+(?:[-_./:][A-Za-z0-9]+)*")
_FORMAT = re.compile(f"[{FORMAT}]+")
_PART = re.compile(f"[{SPACED}]+")
_STARTS_UNSPACED = re.compile(f"[{UNSPACED}]")
_PUNCTUATION = ".,;:!?()[]\"'"
_JOINED = re.compile("[-_./:]")
_MARKED = re.compile(r"[\d_]")
_DIGIT = re.compile(r"\d")
_NO_JOINERS = dict.fromkeys(map(ord, JOINERS))


@dataclass(frozen=True)
class AnalysisSettings:
    """How text becomes tokens. Raises ConfigError for an analyser that does not exist.

    `analyzer`: a language code such as `en` or `hi`; `words`: Unicode words of any language, without stemming and stop
    words; `whitespace`: what stands between white space, unchanged. For a language, `stem` sets Snowball stemming of
    plain words and `stop_words` leaves out its most common words.
    """

    stem: bool = True
    stop_words: bool = True
    analyzer: str = "en"

    def __post_init__(self):
        if self.analyzer not in ANALYZERS:
            raise ConfigError(
                f"search.lexical.analyzer is {self.analyzer!r}; choose one of: auto, {', '.join(ANALYZERS)}."
            )


def is_identifier(run: str) -> bool:
    """True for a run of joined parts that has a digit, an underscore, or capitals only."""
    return _JOINED.search(run) is not None and (_MARKED.search(run) is not None or run.isupper())


class Analyzer:
    """Turns text into tokens; may be shared between threads."""

    def __init__(self, settings: AnalysisSettings | None = None, cached_runs: int = SEARCH_CACHED_RUNS):
        """`cached_runs`: how many runs of letters are kept with their tokens."""
        self.settings = settings = settings or AnalysisSettings()
        self._stop_words = frozenset(STOP_WORDS.get(settings.analyzer, ()) if settings.stop_words else ())
        self._stemmer = STEMMERS.get(settings.analyzer) if settings.stem else None
        self._unmarked = settings.analyzer in UNMARKED
        self._local = threading.local()
        self._cache = _Cache(self._tokens_of_run, cached_runs)

    def tokens(self, text: str) -> list[str]:
        """Tokens in the order of the text; the whole of an identifier comes before its parts."""
        if self.settings.analyzer == "whitespace":
            return text.split()
        # A soft hyphen or a zero-width space stands inside a word, which is shown without it.
        normal = text if text.isascii() else _FORMAT.sub("", unicodedata.normalize("NFKC", text))
        return list(chain.from_iterable(map(self._cache.__getitem__, _RUN.findall(normal))))

    def tokens_of_seldom(self, word: str) -> tuple[str, ...] | None:
        """The tokens of one word without white space, None where nothing of it is visible.

        They are not kept: this is for who keeps words with their tokens.
        """
        if word.isascii() and word.isprintable() and self.settings.analyzer != "whitespace":  # nearly all, hence first
            plain = word.strip(_PUNCTUATION)
            if plain.isalnum():
                return self._tokens_of_word(plain.lower())
            return tuple(chain.from_iterable(map(self._tokens_of_ascii_run, _ASCII_RUN.findall(plain))))
        visible = clean(word)
        return tuple(self.tokens(visible)) if visible else None

    def _tokens_of_run(self, run: str) -> tuple[str, ...]:
        if run.isascii():  # nearly all, hence first
            return self._tokens_of_ascii_run(run)
        if _STARTS_UNSPACED.match(run):
            return (*run, *(run[i : i + 2] for i in range(len(run) - 1)))
        run = run.translate(_NO_JOINERS)
        if self._unmarked:
            run = "".join(char for char in unicodedata.normalize("NFD", run) if unicodedata.category(char) != "Mn")
        tokens = tuple(chain.from_iterable(self._tokens_of_word(part.casefold()) for part in _PART.findall(run)))
        return (run.casefold(), *tokens) if is_identifier(run) else tokens

    def _tokens_of_ascii_run(self, run: str) -> tuple[str, ...]:
        whole = run.lower()
        if run.isalnum():
            return self._tokens_of_word(whole)
        parts = _JOINED.sub(" ", whole).split()
        tokens = tuple(chain.from_iterable(map(self._tokens_of_word, parts)))
        return (whole, *tokens) if _MARKED.search(run) or run.isupper() else tokens

    def _tokens_of_word(self, word: str) -> tuple[str, ...]:
        if word in self._stop_words:
            return ()
        if self._stemmer is None or (not word.isalpha() and (word.isascii() or _DIGIT.search(word))):
            return (word,)
        # A Snowball stemmer keeps state between calls, so each thread has its own.
        stemmer = getattr(self._local, "stemmer", None)
        if stemmer is None:
            stemmer = self._local.stemmer = _new_stemmer(self._stemmer)
        return (stemmer.stemWord(word),)


def _new_stemmer(name: str) -> Any:
    # Imported at the first use: a process that owns a vLLM engine analyses plain words, and loads no retrieval library.
    import Stemmer

    # Without a cache of its own, which takes three times as long as stemming; tokens are kept here.
    return Stemmer.Stemmer(name, 0)


class _Cache(dict[str, tuple[str, ...]]):
    """The tokens of runs seen before: most words of a text were, and a look-up costs no Python call.

    It holds at most `size` runs of at most `LONGEST_CACHED_RUN` characters, and 16 characters a run together.
    """

    def __init__(self, compute: Callable[[str], tuple[str, ...]], size: int):
        super().__init__()
        self._size = size
        self._compute = compute
        self._characters = 0

    def __missing__(self, run: str) -> tuple[str, ...]:
        tokens = self._compute(run)
        if len(run) > LONGEST_CACHED_RUN:
            return tokens
        if len(self) >= self._size or self._characters + len(run) > self._size * _CHARACTERS_PER_CACHED_RUN:
            self.clear()
            self._characters = 0
        self._characters += len(run)
        self[run] = tokens
        return tokens
