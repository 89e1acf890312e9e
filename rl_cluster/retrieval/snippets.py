"""Short snippets: the few words of a document that say most about a query."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from rl_cluster.retrieval.analysis import Analyzer

DEFAULT_SNIPPET_WORDS = 24


def clean(text: str) -> str:
    """`text` in one line: control and format characters out, runs of white space as one blank."""
    kept = (" " if char.isspace() else char for char in text if char.isspace() or unicodedata.category(char)[0] != "C")
    return " ".join("".join(kept).split())


def snippet(
    text: str, query_tokens: Collection[str], analyzer: Analyzer, max_words: int = DEFAULT_SNIPPET_WORDS
) -> str:
    """At most `max_words` words of `text` that hold the most different query tokens, else its beginning.

    Among equal windows the first wins, moved left so that the matches stand in its middle.
    """
    words = clean(text).split(" ")
    if len(words) <= max_words:
        return " ".join(words)
    wanted = set(query_tokens)
    matches = [wanted.intersection(analyzer.tokens(word)) for word in words]
    start = _best_start(matches, max_words)
    return " ".join(words[start : start + max_words])


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
