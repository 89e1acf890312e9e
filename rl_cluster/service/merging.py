"""One reply from those of all shards of an index; exactly what the whole index would reply."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice

from rl_cluster.errors import RLClusterError, UnknownDocumentError
from rl_cluster.service.values import DocumentAnswer, DocumentRequest, IndexDescription, Reply, Request, SearchAnswer


def merged(request: Request, replies: Sequence[Reply]) -> Reply | None:
    """The reply to `request`, which every shard was asked; None where a newer index is just being swapped in, so that some
    replies are from it and some are not.

    Results are ordered by score and then by id, as the documents of an index are. An error of one shard is that of all, save
    that of a document which another shard has.
    """
    if isinstance(request, DocumentRequest):
        # Found, else an error that says more than that a shard does not have it.
        ranks = {DocumentAnswer: 0, UnknownDocumentError: 2}
        return min(replies, key=lambda reply: ranks.get(type(reply), 1))
    answers = [reply for reply in replies if isinstance(reply, SearchAnswer)]
    if len(answers) < len(replies):
        return next(reply for reply in replies if isinstance(reply, RLClusterError))
    if len({answer.index_id for answer in answers}) > 1:
        return None
    hits = heapq.merge(*(answer.hits for answer in answers), key=lambda hit: (-hit.score, hit.doc_id))
    return SearchAnswer(answers[0].index_id, list(islice(hits, request.k)))


def described(shards: Sequence[list[IndexDescription]]) -> list[IndexDescription]:
    """The indexes as wholes, from how each shard describes its part of them."""
    found: dict[str, IndexDescription] = {}
    for index in (index for shard in shards for index in shard):
        before = found.get(index.name)
        total = index.num_documents + (before.num_documents if before else 0)
        found[index.name] = IndexDescription(index.name, index.index_id, index.corpus, total, index.filter_fields)
    return list(found.values())
