"""Texts -> blocks of tokens, by several processes where there are many texts.

Invariant: whoever cuts the texts into tokens, the same blocks come in the same order.
"""

from __future__ import annotations

import multiprocessing
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from rl_cluster.errors import IndexBuildError
from rl_cluster.retrieval.analysis import BUILD_CACHED_RUNS, AnalysisSettings, Analyzer

BLOCK_TEXTS = 4096
ALONE_BLOCKS = 5
"""Blocks that one process has done before others would have started."""


@dataclass(frozen=True)
class TokenBlock:
    """`words`: the different tokens of a few texts, in the order in which they come; `numbers`: int32 `[tokens]`, the place of each
    token among them; `lengths`: int64 `[texts]`, tokens of each text."""

    words: list[str]
    numbers: np.ndarray
    lengths: np.ndarray


def block_of(token_lists: Iterable[Sequence[str]]) -> TokenBlock:
    """One block of a few texts' tokens."""
    numbers, lengths, places = array("i"), [], Places()
    for tokens in token_lists:
        numbers.extend(map(places.__getitem__, tokens))
        lengths.append(len(tokens))
    return TokenBlock(list(places), np.array(numbers, np.int32), np.array(lengths, np.int64))


def token_blocks(texts: Iterable[str], settings: AnalysisSettings, processes: int = 1) -> Iterator[TokenBlock]:
    """The tokens of all texts in their order. With `processes` over 1 a large collection is shared out.

    Raises IndexBuildError where one of them is killed.
    """
    remaining = iter(texts)
    rest = iter(lambda: tuple(islice(remaining, BLOCK_TEXTS)), ())
    analyzer = Analyzer(settings, BUILD_CACHED_RUNS)
    for block in rest if processes < 2 else islice(rest, ALONE_BLOCKS):
        yield block_of(map(analyzer.tokens, block))
    first = next(rest, None)
    if first is not None:
        yield from _shared_out(chain([first], rest), settings, processes)


class Places(dict[str, int]):
    """Numbers new tokens in the order in which they come."""

    def __missing__(self, token: str) -> int:
        number = self[token] = len(self)
        return number


def _shared_out(blocks: Iterable[tuple[str, ...]], settings: AnalysisSettings, processes: int) -> Iterator[TokenBlock]:
    # Not forked: this process may have threads, whose locks a copy would hold for ever.
    pool = ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_set_analyzer, initargs=(settings,)
    )
    try:
        pending: deque[Future[TokenBlock]] = deque()
        for block in blocks:
            pending.append(pool.submit(_analyzed, block))
            if len(pending) > 2 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise IndexBuildError(
            "A process that cuts texts into words was killed, most likely for lack of memory, or could not start, where a script does "
            "its work outside of `if __name__ == '__main__':`; free some memory of this machine, or correct the script."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_analyzer: Analyzer | None = None


def _set_analyzer(settings: AnalysisSettings) -> None:
    global _analyzer
    _analyzer = Analyzer(settings, BUILD_CACHED_RUNS)


def _analyzed(texts: Sequence[str]) -> TokenBlock:
    assert _analyzer is not None
    return block_of(map(_analyzer.tokens, texts))
