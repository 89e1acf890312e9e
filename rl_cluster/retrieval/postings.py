"""Term counts of a collection, gathered document by document and turned into columns of terms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rl_cluster.retrieval.token_blocks import Places, TokenBlock

_RUN_TOKENS = 4_000_000
_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Postings:
    """Which term occurs in which document how often, by columns: those of term t are `starts[t]` to `starts[t + 1]`.

    `starts`: int64 `[terms + 1]`; `documents`: int32 `[entries]`, ascending within a term; `counts`: int32 `[entries]`;
    `lengths`: int64 `[documents]`, the number of tokens of each document.
    """

    starts: np.ndarray
    documents: np.ndarray
    counts: np.ndarray
    lengths: np.ndarray

    @property
    def num_documents(self) -> int:
        return len(self.lengths)

    @property
    def num_terms(self) -> int:
        return len(self.starts) - 1


def count_terms(blocks: Iterable[TokenBlock]) -> tuple[Postings, dict[str, int]]:
    """Counts the tokens of each document. Returns the postings and the vocabulary (token -> term number)."""
    vocabulary = Places()
    counted: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    lengths: list[np.ndarray] = [np.zeros(0, np.int64)]
    terms: list[np.ndarray] = []
    first = uncounted = 0
    for block in blocks:
        numbers = np.fromiter(map(vocabulary.__getitem__, block.words), np.int64, len(block.words))
        terms.append(numbers[block.numbers])
        lengths.append(block.lengths)
        uncounted += len(block.numbers)
        # Few large runs: each takes a pass over the whole vocabulary later.
        if uncounted >= _RUN_TOKENS:
            counted.append(_counted(np.concatenate(terms), np.concatenate(lengths)[first:], first))
            terms, first, uncounted = [], sum(map(len, lengths)), 0
    counted.append(_counted(np.concatenate([*terms, np.zeros(0, np.int64)]), np.concatenate(lengths)[first:], first))
    return _joined(counted, np.concatenate(lengths), len(vocabulary)), vocabulary


def _counted(terms: np.ndarray, lengths: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(term, document, count) of one block, ordered by term and then document; `first`: the position of its first document."""
    documents = np.repeat(np.arange(first, first + len(lengths), dtype=np.int64), lengths)
    keys = (terms << 32) | documents
    keys.sort()
    fresh = np.flatnonzero(np.diff(keys, prepend=-1))
    keys, counts = keys[fresh], np.diff(fresh, append=len(keys))
    return (keys >> 32).astype(np.int32), keys.astype(np.uint32).astype(np.int32), counts.astype(np.int32)


def _joined(blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]], lengths: np.ndarray, num_terms: int) -> Postings:
    sizes = [np.bincount(terms, minlength=num_terms) for terms, _, _ in blocks]
    starts = np.zeros(num_terms + 1, np.int64)
    np.cumsum(np.sum(sizes, axis=0), out=starts[1:])
    documents = np.empty(starts[-1], np.int32)
    counts = np.empty(starts[-1], np.int32)
    heads = starts[:-1].copy()
    for number, size in enumerate(sizes):
        terms, block_documents, block_counts = blocks[number]
        blocks[number] = (_NONE, _NONE, _NONE)  # frees a block as soon as it is moved
        # Each term's entries of this block follow those of the blocks before; blocks come in the order of documents.
        offset = heads - (np.cumsum(size) - size)
        places = np.arange(len(terms)) + offset[terms]
        documents[places] = block_documents
        counts[places] = block_counts
        heads += size
    return Postings(starts, documents, counts, lengths)
