"""A search endpoint of one's own as the SearchClient of agents: Elasticsearch, OpenSearch, or any that speaks JSON.

What such an endpoint sends is data: texts are cleaned and cut. Where it says that the request itself is wrong (422, or 400 with
a JSON `error`), that is a SearchRequestError: the policy's fault, such as a filter of the wrong type, or that of a setting, which
ends the run at its start, when every tool is tried once. Whatever else it does wrong is an infrastructure failure. 429, 502, 503,
504 and lost connections are tried again within the deadline; other failures are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from rl_cluster.config import SearchConfig
from rl_cluster.config_search import ENDPOINT_ACCESS
from rl_cluster.datasets.text import (
    MAX_PART_CHARACTERS,
    MAX_SNIPPET_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    clean,
    clean_lines,
    limited,
)
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search_tools import ReadPart
from rl_cluster.errors import ConfigError, SearchRequestError, ToolTimeoutError, ToolUnavailableError
from rl_cluster.retrieval.analysis import AnalysisSettings, Analyzer
from rl_cluster.retrieval.passages import passages
from rl_cluster.retrieval.snippets import snippet
from rl_cluster.service.http_mapping import HttpSearchSettings, RawHit, at_path, read_hit, read_hits, search_body

_TRANSIENT = (429, 502, 503, 504)
_MAX_ANSWER_BYTES = 16 << 20
_MAX_QUERY_CHARACTERS = 32_768
_MAX_SNIPPET_SOURCE = 16_384
"""Characters of a hit's text in which a snippet is looked for: an endpoint gives passages, or a highlight."""
_MAX_REASON = 200
_FIRST_PAUSE_S = 0.2


def http_search_settings(search: SearchConfig) -> HttpSearchSettings:
    """The settings of a configuration, with the token from the environment. Raises ConfigError where that is not set."""
    external = search.external
    assert external is not None
    token = os.environ.get(external.token_env, "") if external.token_env else ""
    if external.token_env and not token:
        raise ConfigError(
            f"search.external.token_env={external.token_env}: that environment variable is not set; set it to the token on all "
            "machines of the cluster."
        )
    return HttpSearchSettings(
        kind=external.kind,
        url=external.url,
        tools={str(tool): template for tool, template in external.tools.items()},
        fields={str(name): path for name, path in external.fields.items()},
        max_k=external.max_k,
        hits=external.hits,
        document_url=external.document_url,
        document=external.document,
        token=token,
        token_scheme=external.token_scheme,
        timeout_s=search.timeout_s,
        snippet_words=search.snippet_words,
        max_concurrency=external.max_concurrency,
        retries=external.retries,
    )


def endpoint_id(search: SearchConfig) -> str:
    """Names an endpoint and what it is asked, in place of an index's content id; what it holds may change all the same."""
    assert search.external is not None
    state = json.dumps(search.external.model_dump(mode="json", exclude=set(ENDPOINT_ACCESS)), sort_keys=True)
    return f"external-{hashlib.sha256(state.encode()).hexdigest()[:23]}"


class HttpSearchClient:
    """Belongs to one event loop. See environments.search_tools.SearchClient."""

    def __init__(self, settings: HttpSearchSettings):
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._room = asyncio.Semaphore(settings.max_concurrency)
        # Which language the endpoint's texts are in is not known; plain words also load no library into a rollout worker.
        self._analyzer = Analyzer(AnalysisSettings(analyzer="words"))

    @property
    def url(self) -> str:
        """Where searches go."""
        return self._settings.url

    def over(self, corpus: str) -> HttpSearchClient:
        """This client: an endpoint has one collection."""
        return self

    async def search(
        self, tool: str, query: str, k: int, excluded: tuple[str, ...], filters: Mapping[str, Any] | None = None
    ) -> list[FoundDocument]:
        """At most k results, best first, ties by id; excluded ones never.

        A document of which several passages are found counts once, with the best. They are fewer than k then, and where the endpoint
        cannot leave documents out and its first `max_k` results are excluded ones.
        """
        settings = self._settings
        if not query.strip():
            raise SearchRequestError("The query is empty; write at least one word.")
        if len(query) > _MAX_QUERY_CHARACTERS:
            raise SearchRequestError(f"The query has {len(query)} characters; give at most {_MAX_QUERY_CHARACTERS}.")
        safe = query.replace("\0", " ").encode("utf-8", "replace").decode()
        body = search_body(settings, tool, safe, k, excluded, filters)
        answer = await self._ask("POST", settings.url, body)
        try:
            hits = read_hits(settings, answer)
        except ValueError as error:
            raise ToolUnavailableError(
                f"{settings.url} gave an answer that search.external does not fit: {error}."
            ) from error
        if all(hit.score is not None for hit in hits):
            hits.sort(key=lambda hit: (-(hit.score or 0.0), hit.doc_id))
        banned, best = set(excluded), {}
        for hit in hits:  # several passages of a document may be found; the first is the best
            if hit.doc_id not in banned:
                best.setdefault(hit.doc_id, hit)
        shown = list(best.values())[:k]
        tokens = self._analyzer.tokens(safe)
        return [self._found(hit, tokens) for hit in shown]

    async def read(self, doc_id: str, part: int, excluded: tuple[str, ...]) -> ReadPart:
        """One part of a document. Raises SearchRequestError for an unknown or excluded id and for a part it does not have."""
        settings = self._settings
        if settings.document_url is None:
            raise SearchRequestError("Documents cannot be read here; search instead.")
        if doc_id in excluded:
            raise SearchRequestError(f"The document {doc_id!r} must not be shown for this task; use an id of a hit.")
        url = settings.document_url.replace("{id}", quote(doc_id, safe=""))
        answer = await self._ask("GET", url, None)
        if answer is None:
            raise SearchRequestError(f"There is no document {doc_id[:80]!r}; use an id of a hit.")
        try:
            found = read_hit(settings, at_path(answer, settings.document))
        except ValueError as error:
            raise ToolUnavailableError(f"{url} gave an answer that search.external does not fit: {error}.") from error
        parts = passages(found.text)
        if not 1 <= part <= len(parts):
            raise SearchRequestError(f"part is {part}; the document {doc_id!r} has the parts 1 to {len(parts)}.")
        text = found.text[parts[part - 1].start : parts[part - 1].end]
        return ReadPart(doc_id, _title(found), limited(clean_lines(text), MAX_PART_CHARACTERS), part, len(parts))

    async def close(self) -> None:
        """Closes its connections."""
        if self._session is not None:
            await self._session.close()

    def _found(self, hit: RawHit, tokens: list[str]) -> FoundDocument:
        """The hit as agents see it, with the words of its text that share most with the query."""
        shown = snippet(hit.text[:_MAX_SNIPPET_SOURCE], tokens, self._analyzer, self._settings.snippet_words)
        return FoundDocument(hit.doc_id, _title(hit), limited(shown, MAX_SNIPPET_CHARACTERS))

    async def _ask(self, method: str, url: str, body: dict[str, Any] | None) -> Any:
        """The JSON of an answer, None for a document that is not there; retries within the deadline."""
        settings = self._settings
        deadline = time.monotonic() + settings.timeout_s
        pause = _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(settings.timeout_s):
                async with self._room:
                    for attempt in range(settings.retries + 1):
                        last = attempt == settings.retries
                        try:
                            status, wait_s, content = await self._send(method, url, body)
                        except (aiohttp.ClientError, OSError) as error:
                            if last or isinstance(error, aiohttp.InvalidURL):
                                raise ToolUnavailableError(f"{url} cannot be reached: {error}.") from error
                            wait_s = None
                        else:
                            if status not in _TRANSIENT or last:
                                return _json(url, method, status, content)
                        pause = min(max(pause, wait_s or 0.0), max(0.0, deadline - time.monotonic()))
                        await asyncio.sleep(pause)
                        pause *= 2
        except TimeoutError as error:
            raise ToolTimeoutError(f"{url} did not answer within {settings.timeout_s:g} s.") from error
        raise AssertionError

    async def _send(self, method: str, url: str, body: dict[str, Any] | None) -> tuple[int, float | None, bytes]:
        settings = self._settings
        if self._session is None:
            headers = {"Accept": "application/json"}
            if settings.token:
                headers["Authorization"] = f"{settings.token_scheme} {settings.token}"
            self._session = aiohttp.ClientSession(headers=headers)
        async with self._session.request(method, url, json=body, allow_redirects=False) as answer:
            content = bytearray()
            async for piece in answer.content.iter_chunked(1 << 16):
                content += piece
                if len(content) > _MAX_ANSWER_BYTES:
                    raise ToolUnavailableError(f"{url} gave more than {_MAX_ANSWER_BYTES} bytes; ask it for less text.")
            wait_s = None
            with contextlib.suppress(ValueError):
                wait_s = float(answer.headers.get("Retry-After", ""))
            return answer.status, wait_s, bytes(content)


async def try_tool(client: HttpSearchClient, tool: str, filters: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError where the endpoint refuses what the template of a tool makes of a question and of `filters`."""
    try:
        await client.search(tool, "search", 1, (), filters)
    except SearchRequestError as error:
        said = str(error).rstrip(".")
        raise ConfigError(f"search.external.tools.{tool}: {said}; correct it to what {client.url} takes.") from error


def _json(url: str, method: str, status: int, content: bytes) -> Any:
    if status == 404 and method == "GET":
        return None
    if status in (400, 422):
        reason = _reason(content)
        if reason or status == 422:
            raise SearchRequestError(f"The search was refused as wrong: {reason or 'no reason is given'}.")
    if status != 200:
        said = clean(content[:2000].decode("utf-8", "replace"))[:200]
        raise ToolUnavailableError(f"{url} answered with status {status}: {said or 'no text'}.")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ToolUnavailableError(f"{url} gave no JSON: {clean(str(error))[:200]}.") from error


def _reason(content: bytes) -> str:
    """What the JSON of a refusal gives as its reason, in one line; empty where it is no JSON with an `error` or a `detail`."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    found = (
        next((answer[key] for key in ("error", "detail") if answer.get(key)), "") if isinstance(answer, dict) else ""
    )
    if isinstance(found, dict):
        causes = found.get("root_cause")
        inner = causes[0] if isinstance(causes, list) and causes and isinstance(causes[0], dict) else found
        found = next((inner[key] for key in ("message", "reason", "type") if inner.get(key)), found)
    return clean(found if isinstance(found, str) else json.dumps(found))[:_MAX_REASON].rstrip(".")


def _title(hit: RawHit) -> str:
    return limited(clean(hit.title[: 4 * MAX_TITLE_CHARACTERS]), MAX_TITLE_CHARACTERS)
