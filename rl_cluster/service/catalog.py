"""The named indexes of one process: opened, asked, and changed for newer ones while they are asked.

Invariants: what a request is answered from is chosen once, when its computing starts; an index that requests still use stays
open until they end; a request whose deadline has passed is not computed; no request's error touches another's answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rl_cluster.datasets.text import MAX_PART_CHARACTERS, MAX_TITLE_CHARACTERS, clean, clean_lines, limited
from rl_cluster.errors import RLClusterError, SearchRequestError, ToolTimeoutError, ToolUnavailableError
from rl_cluster.retrieval.devices import Devices
from rl_cluster.retrieval.hit import Hit
from rl_cluster.retrieval.index import Query, SearchIndex
from rl_cluster.retrieval.manifest import read_manifest
from rl_cluster.retrieval.memory import check_open, open_bytes
from rl_cluster.service.values import (
    SEARCH_TOOLS,
    DocumentAnswer,
    DocumentRequest,
    IndexDescription,
    Reply,
    Request,
    SearchAnswer,
    SearchRequest,
)

logger = logging.getLogger("ray.serve")


class IndexCatalog:
    """Answers requests over several indexes; may be shared between threads."""

    def __init__(
        self,
        parts: tuple[str, ...],
        memory_gib: float | None = None,
        clock: Callable[[], float] = time.time,
        devices: Devices | None = None,
    ):
        """`parts`: what is opened of each index; `memory_gib`: for all of them, None for the machine's.

        `clock`: seconds since the epoch; `devices`: where the indexes compute.
        """
        self._parts = parts
        self._devices = devices
        self._memory_gib = memory_gib
        self._clock = clock
        self._opened: dict[str, SearchIndex] = {}
        self._active: dict[str, SearchIndex] = {}

    def apply(self, folders: Mapping[str, str], pending: Mapping[str, str] | None = None) -> None:
        """Opens the `folders` (name -> folder) and answers from them; `pending` ones are opened and wait.

        Others are let go. Raises IndexFormatError or ModelError where one cannot be opened or lacks a part, ConfigError where all
        together do not fit into memory or a GPU is missing; then nothing has changed.
        """
        wanted = dict.fromkeys([*folders.values(), *(pending or {}).values()])
        taken = 0
        for folder in wanted:
            manifest, settings = read_manifest(Path(folder))
            taken += open_bytes(manifest, settings, self._parts)
            check_open(folder, taken, self._memory_gib)
        opened = {folder: self._opened.get(folder) or self._open(folder) for folder in wanted}
        self._opened = opened
        self._active = {name: opened[folder] for name, folder in folders.items()}

    def _open(self, folder: str) -> SearchIndex:
        index = SearchIndex.open(folder, self._parts, devices=self._devices)
        index.warm_up()
        return index

    def describe(self) -> list[IndexDescription]:
        """All indexes by name, in the order in which they were given."""
        return [
            IndexDescription(name, index.index_id, index.corpus.name, len(index.corpus), index.filter_fields)
            for name, index in self._active.items()
        ]

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        """One answer, or one error, for each request; searches of one tool in one index are answered together."""
        replies: dict[int, Reply] = {}
        together: dict[tuple[str, str], list[int]] = {}
        active = self._active
        for place, request in enumerate(requests):
            try:
                index = self._index(active, request)
                if isinstance(request, DocumentRequest):
                    replies[place] = _document(index, request)
                else:
                    together.setdefault((index.index_id, _kind(request)), []).append(place)
            except RLClusterError as error:
                replies[place] = error
            except Exception as error:
                logger.exception("A request failed unexpectedly.")
                replies[place] = _failed(error)
        by_id = {index.index_id: index for index in active.values()}
        for (index_id, kind), places in together.items():
            # Word search is answered one by one in any case: then the deadline is looked at before each.
            for group in [[place] for place in places] if kind == "lexical" else [places]:
                searches = [requests[place] for place in group]
                replies.update(zip(group, self._search_apart(by_id[index_id], kind, searches), strict=True))
        return [replies[place] for place in range(len(requests))]

    def _search_apart(self, index: SearchIndex, kind: str, requests: Sequence[Request]) -> list[Reply]:
        """As `_search`; where something fails unexpectedly, such as a damaged file, only the requests that meet it do."""
        try:
            return self._search(index, kind, requests)
        except Exception as error:
            logger.exception("%d requests failed unexpectedly.", len(requests))
            if len(requests) == 1:
                return [_failed(error)]
            return [reply for request in requests for reply in self._search_apart(index, kind, [request])]

    def _search(self, index: SearchIndex, kind: str, requests: Sequence[Request]) -> list[Reply]:
        replies: list[Reply | None] = []
        queries = []
        for request in requests:
            assert isinstance(request, SearchRequest)
            late = self._late(request)
            replies.append(late)
            if late is None:
                queries.append(Query(request.query, request.k, request.excluded, request.filters))
        found = iter(index.search_many(kind, queries))
        return [reply if reply is not None else _answer(index, next(found)) for reply in replies]

    def _index(self, active: Mapping[str, SearchIndex], request: Request) -> SearchIndex:
        late = self._late(request)
        if late is not None:
            raise late
        name = next(iter(active)) if request.index is None else request.index
        if name not in active:
            raise SearchRequestError(f"There is no index {str(name)[:80]!r}; the indexes are: {', '.join(active)}.")
        return active[name]

    def _late(self, request: Request) -> ToolTimeoutError | None:
        over = self._clock() - request.deadline
        if over <= 0:
            return None
        return ToolTimeoutError(
            f"The deadline of a request had passed by {over:.1f} s when its turn came; nothing was done."
        )


def _failed(error: Exception) -> ToolUnavailableError:
    said = next(iter(str(error).splitlines()), "")[:200]
    return ToolUnavailableError(
        f"A request failed unexpectedly ({type(error).__name__}: {said}); the log of its replica says more."
    )


def _kind(request: SearchRequest) -> str:
    kind = SEARCH_TOOLS.get(request.tool)
    if kind is None:
        raise SearchRequestError(f"There is no tool {str(request.tool)[:80]!r}; use one of {', '.join(SEARCH_TOOLS)}.")
    return kind


def _answer(index: SearchIndex, found: list[Hit] | SearchRequestError) -> Reply:
    if isinstance(found, SearchRequestError):
        return found
    return SearchAnswer(index.index_id, found)


def _document(index: SearchIndex, request: DocumentRequest) -> DocumentAnswer:
    found = index.read_document(request.doc_id, request.part, request.excluded)
    return DocumentAnswer(
        index_id=index.index_id,
        doc_id=found.doc_id,
        title=limited(clean(found.title[: 4 * MAX_TITLE_CHARACTERS]), MAX_TITLE_CHARACTERS),
        text=limited(clean_lines(found.text), MAX_PART_CHARACTERS),
        part=found.part,
        parts=found.parts,
        start=found.start,
        end=found.end,
    )
