"""Short snippets: the few words of a document that say most about a query."""

from __future__ import annotations

from collections.abc import Collection

from rl_cluster.retrieval.analysis import Analyzer
from rl_cluster.retrieval.passages import word_spans
from rl_cluster.retrieval.text import clean

DEFAULT_SNIPPET_WORDS = 24
_CACHED_WORDS = 8192


def snippet(
    text: str, query_tokens: Collection[str], analyzer: Analyzer, max_words: int = DEFAULT_SNIPPET_WORDS
) -> str:
    """At most `max_words` words of `text` that hold the most different query tokens, else its beginning.

    Among equal windows the first wins, moved left so that the matches stand in its middle.
    """
    start, end = best_window(text, word_spans(text), query_tokens, WordTokens(analyzer), max_words)
    return clean(text[start:end])


class WordTokens(dict[str, tuple[str, ...] | None]):
    """The tokens of each word seen so far, None for one of control characters; the same words stand in many documents."""

    def __init__(self, analyzer: Analyzer):
        super().__init__()
        self._analyzer = analyzer

    def __missing__(self, word: str) -> tuple[str, ...] | None:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        visible = clean(word)
        tokens = self[word] = tuple(self._analyzer.tokens(visible)) if visible else None
        return tokens


def best_window(
    text: str, words: list[tuple[int, int]], query_tokens: Collection[str], word_tokens: WordTokens, max_words: int
) -> tuple[int, int]:
    """Where the snippet starts and ends in the text, in characters; `words`: the spans of `passages.word_spans`."""
    wanted = set(query_tokens)
    found = [word_tokens[text[start:end]] for start, end in words]
    if None in found:  # a word of control characters is none
        words = [span for span, tokens in zip(words, found, strict=True) if tokens is not None]
    matches = [wanted.intersection(tokens) for tokens in found if tokens is not None]
    if len(words) <= max_words:
        return 0, len(text)
    first = _best_start(matches, max_words)
    return words[first][0], words[first + max_words - 1][1]


def _best_start(matches: list[set[str]], size: int) -> int:
    """The start of the window with the most different matches (then the most matches, then the first)."""
    hits = [i for i, found in enumerate(matches) if found]
    best_key, best = (0, 0), None
    counts: dict[str, int] = {}
    end = 0
    for begin_index, begin in enumerate(hits):
        while end < len(hits) and hits[end] < begin + size:
            for token in matches[hits[end]]:
                counts[token] = counts.get(token, 0) + 1
            end += 1
        key = (len(counts), end - begin_index)
        if key > best_key:
            best_key, best = key, (begin, hits[end - 1])
        for token in matches[begin]:
            counts[token] -= 1
            if not counts[token]:
                del counts[token]
    if best is None:
        return 0
    first, last = best
    slack = size - (last - first + 1)
    return max(0, min(first - slack // 2, len(matches) - size))
