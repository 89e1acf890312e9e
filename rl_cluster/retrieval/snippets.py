"""Short snippets: the few words of a document that say most about a query.

The budget is in words, since an index is asked by models with different tokens: an English word is about 1.3 of them. Words
have `CHARACTERS_PER_WORD` on average at most, so that addresses and code cannot take a multiple of the budget.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress, count

from rl_cluster.datasets.text import clean
from rl_cluster.retrieval.analysis import Analyzer
from rl_cluster.retrieval.passages import LONG_TEXT, PART_WORDS, Passage, Words

DEFAULT_SNIPPET_WORDS = 24
CHARACTERS_PER_WORD = 16
_CACHED_WORDS = 16_384
_SOUGHT_TOKENS = 32
SEVERAL = "\0"
"""No token, since none holds a control character."""

_Span = tuple[int, int]


def snippet(
    text: str, query_tokens: Collection[str], analyzer: Analyzer, max_words: int = DEFAULT_SNIPPET_WORDS
) -> str:
    """At most `max_words` words of `text` that hold the most different query tokens, else its beginning; all of it is analysed.

    Among equal windows the first wins, moved left so that the matches stand in its middle. Words may have
    `CHARACTERS_PER_WORD * max_words` characters together; beyond that the ones farthest from a match are left out.
    """
    start, end = best_window(Words(text), query_tokens, WordTokens(analyzer), max_words)
    return clean(text[start:end])


class WordTokens(dict[str, str | None]):
    """The token of each word seen so far; the same words stand in many documents.

    An empty string where there is none, as for stop words; None for a word of control characters, which is no word; SEVERAL for
    one of several tokens, such as an identifier, which `several` gives.
    """

    def __init__(self, analyzer: Analyzer):
        super().__init__()
        self._analyzer = analyzer
        self._several: dict[str, tuple[str, ...]] = {}

    def __missing__(self, word: str) -> str | None:
        if len(self) >= _CACHED_WORDS:
            self.clear()
            self._several.clear()
        tokens = self._analyzer.tokens_of_seldom(word)
        if tokens is not None and len(tokens) > 1:
            self._several[word] = tokens
            found = SEVERAL
        else:
            found = None if tokens is None else "".join(tokens)
        self[word] = found
        return found

    def several(self, word: str) -> tuple[str, ...]:
        """The tokens of a word that has SEVERAL here."""
        # Another thread may have made room meanwhile.
        return self._several.get(word) or self._analyzer.tokens_of_seldom(word) or ()


def best_window(words: Words, query_tokens: Collection[str], word_tokens: WordTokens, max_words: int) -> _Span:
    """Where the snippet starts and ends in the text, in characters; `words`: all of the text's."""
    return _window(words, _wanted(query_tokens), word_tokens, max_words)[1]


def best_window_of_parts(
    text: str, parts: Sequence[Passage], query_tokens: Collection[str], word_tokens: WordTokens, max_words: int
) -> _Span:
    """As `best_window` for a text of any length: at most `LONG_TEXT` characters of it are analysed.

    They are those `parts` (all of the text's, see `passages.passages`) that hold the most different query tokens as they are
    written, and the first ones among equals.
    """
    wanted = _wanted(query_tokens)
    found = [
        _window(Words(text, start, end), wanted, word_tokens, max_words)
        for start, end in _promising(text, parts, wanted, max_words)
    ]
    return max(found, key=lambda window: window[0])[1]  # the first among equals


def _promising(text: str, parts: Sequence[Passage], wanted: set[str], max_words: int) -> list[_Span]:
    """Stretches of the text that are worth analysing, best first; each holds a window whole."""
    sought = sorted(wanted, key=len, reverse=True)[:_SOUGHT_TOKENS]

    def promise(part: Passage) -> int:
        content = text[part.start : part.end].casefold()
        return sum(token in content for token in sought)

    ranked = sorted(range(len(parts)), key=[-promise(part) for part in parts].__getitem__)
    joined = max_words // (PART_WORDS // 2)  # parts have half their words at least, save the last
    chosen: list[_Span] = []
    left = LONG_TEXT
    for number in ranked:
        start, end = parts[number].start, parts[min(number + joined, len(parts) - 1)].end
        if chosen and end - start > left:
            break
        chosen.append((start, min(end, start + left)))
        left -= end - start
    return chosen


def _wanted(query_tokens: Collection[str]) -> set[str]:
    return {token for token in query_tokens if token}


def _window(words: Words, wanted: set[str], word_tokens: WordTokens, max_words: int) -> tuple[tuple[int, int], _Span]:
    """The best window among `words`, with how good it is; all of their stretch of the text where every word fits."""
    found = words.found
    visible: Sequence[int] = range(len(found))
    matches, invisible = _matches(found, wanted, word_tokens)
    if invisible:
        visible = [number for number, word in enumerate(found) if word_tokens[word] is not None]
        found = [found[number] for number in visible]
        matches, _ = _matches(found, wanted, word_tokens)
    number = len(found)
    first = _best_start(matches, number, max_words) if number > max_words else 0
    last = min(first + max_words, number)
    inside = [tokens for place, tokens in matches.items() if first <= place < last]
    quality = len(set().union(*inside)), len(inside)
    first, last = _shortened(list(map(len, found[first:last])), matches, first, last, CHARACTERS_PER_WORD * max_words)
    if last - first == number:
        return quality, (words.start, words.stop)
    return quality, words.span(visible[first], visible[last - 1])


def _matches(found: Sequence[str], wanted: set[str], word_tokens: WordTokens) -> tuple[dict[int, set[str]], bool]:
    """The wanted tokens of each word that has some, by the word's number, ascending; whether a word is none."""
    noted = {*wanted, SEVERAL, None}
    matches: dict[int, set[str]] = {}
    invisible = False
    # Without a step of Python for a word of no interest, as nearly all are.
    for place in compress(count(), map(noted.__contains__, map(word_tokens.__getitem__, found))):
        token = word_tokens[found[place]]
        if token is None:
            invisible = True
        elif token is not SEVERAL:
            matches[place] = {token}
        elif both := wanted.intersection(word_tokens.several(found[place])):
            matches[place] = both
    return matches, invisible


def _shortened(
    lengths: Sequence[int], matches: dict[int, set[str]], first: int, last: int, characters: int
) -> tuple[int, int]:
    """Those of the words `first` to `last`, of these `lengths`, around the best match that have at most so many characters,
    at least one word."""
    excess = sum(lengths) - characters
    if excess <= 0:
        return first, last
    anchor = max(range(first, last), key=lambda place: len(matches.get(place, ())))
    begin, end = 0, len(lengths)
    while excess > 0 and end - begin > 1:
        if anchor - first - begin > end - 1 - (anchor - first):
            excess -= lengths[begin]
            begin += 1
        else:
            end -= 1
            excess -= lengths[end]
    return first + begin, first + end


def _best_start(matches: dict[int, set[str]], number: int, size: int) -> int:
    """Where, among `number` words, the window with the most different matches starts (then the most matches, then the first)."""
    hits = list(matches)
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
    return max(0, min(first - slack // 2, number - size))
