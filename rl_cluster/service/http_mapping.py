"""Between an agent's search and the JSON of an endpoint of one's own: what is sent, and where the results stand in the answer.

`elasticsearch`: the template of a tool is a query of its query language, to which filters and excluded ids are added;
`http_json`: the template of a tool is the whole body. In templates "{query}", "{k}", "{tool}", "{filters}" and "{excluded}"
stand for what is asked; a string that is nothing else becomes the value itself, so that "{k}" is a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_cluster.datasets.text import id_problem, limited
from rl_cluster.errors import SearchRequestError

_RANGES = ("gt", "gte", "lt", "lte")


@dataclass(frozen=True)
class HttpSearchSettings:
    """`tools`: tool -> template; `hits` and `document`: dotted paths in an answer, empty for all of it.

    `fields`: doc_id, text, and where there are any title and score, as dotted paths in a hit and in a document;
    `max_k`: the most results that the endpoint gives to one search; `document_url` holds {id}; `token_scheme token` is sent as
    Authorization where `token` is not empty.
    """

    kind: str
    url: str
    tools: Mapping[str, Any]
    fields: Mapping[str, str]
    max_k: int = 100
    hits: str = ""
    document_url: str | None = None
    document: str = ""
    token: str = field(default="", repr=False)
    token_scheme: str = "Bearer"
    timeout_s: float = 30.0
    snippet_words: int = 24
    max_concurrency: int = 32
    retries: int = 3


@dataclass(frozen=True)
class RawHit:
    """A result as the endpoint gave it; the text may be long."""

    doc_id: str
    title: str
    text: str
    score: float | None


def search_body(
    settings: HttpSearchSettings,
    tool: str,
    query: str,
    k: int,
    excluded: tuple[str, ...],
    filters: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The body of a search. Raises SearchRequestError for a tool that has no template."""
    if tool not in settings.tools:
        raise SearchRequestError(f"There is no tool {tool[:80]!r}; use one of {', '.join(settings.tools)}.")
    template = settings.tools[tool]
    if settings.kind == "http_json":
        # Where the endpoint cannot leave documents out, enough others are asked for, as far as it gives them.
        wanted = k if "{excluded}" in str(template) else min(k + len(excluded), settings.max_k)
        values = {"query": query, "k": wanted, "tool": tool, "excluded": list(excluded), "filters": dict(filters or {})}
        return _filled(template, values)
    conditions: dict[str, Any] = {"must": [_filled(template, {"query": query, "k": k, "tool": tool})]}
    if filters:
        conditions["filter"] = [_condition(name, value) for name, value in filters.items()]
    if excluded:
        name = settings.fields["doc_id"].removeprefix("_source.")
        ids = {"ids": {"values": list(excluded)}} if name == "_id" else {"terms": {name: list(excluded)}}
        conditions["must_not"] = [ids]
    text = settings.fields["text"].removeprefix("_source.")
    highlight = {"pre_tags": [""], "post_tags": [""], "fields": {text: {"number_of_fragments": 1}}}
    return {"size": k, "query": {"bool": conditions}, "highlight": highlight}


def read_hits(settings: HttpSearchSettings, answer: Any) -> list[RawHit]:
    """The results in an answer. Raises ValueError where they are not where the settings say."""
    found = at_path(answer, settings.hits)
    if not isinstance(found, list):
        raise ValueError(f"at {settings.hits or 'its top'!r} stands {type(found).__name__}, not a list of hits")
    return [read_hit(settings, hit) for hit in found]


def read_hit(settings: HttpSearchSettings, hit: Any) -> RawHit:
    """One result or document. Raises ValueError where it has no text, or no id that can stand in a line of results."""
    doc_id = at_path(hit, settings.fields["doc_id"])
    text = at_path(hit, settings.fields["text"])
    title = at_path(hit, settings.fields["title"]) if "title" in settings.fields else ""
    score = at_path(hit, settings.fields["score"]) if "score" in settings.fields else None
    if not isinstance(doc_id, str | int) or isinstance(doc_id, bool):
        raise ValueError(f"at {settings.fields['doc_id']!r} of a hit stands {type(doc_id).__name__}, not an id")
    problem = id_problem(str(doc_id))
    if not str(doc_id) or problem:
        shown = limited(repr(doc_id), 80)
        raise ValueError(
            f"at {settings.fields['doc_id']!r} of a hit stands {shown}, an id with {problem or 'no character'}"
        )
    if not isinstance(text, str):
        raise ValueError(f"at {settings.fields['text']!r} of a hit stands {type(text).__name__}, not a text")
    if settings.kind == "elasticsearch":
        # Names of fields hold dots of their own, and a hit without a match in the text may have no highlight, or null.
        highlight = hit.get("highlight")
        name = settings.fields["text"].removeprefix("_source.")
        fragments = highlight.get(name) if isinstance(highlight, dict) else None
        if isinstance(fragments, list) and fragments and isinstance(fragments[0], str):
            text = fragments[0]
    number = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
    return RawHit(str(doc_id), title if isinstance(title, str) else "", text, number)


def at_path(value: Any, path: str) -> Any:
    """What stands at a dotted path; None where there is nothing."""
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(template, Mapping):
        return {key: _filled(inner, values) for key, inner in template.items()}
    if isinstance(template, list | tuple):
        return [_filled(inner, values) for inner in template]
    if not isinstance(template, str):
        return template
    name = template[1:-1] if template.startswith("{") and template.endswith("}") else ""
    if name in values:
        return values[name]
    # Only the query stands within longer strings; it is put in last, since it may hold braces of its own.
    for key in ("tool", "query"):
        template = template.replace(f"{{{key}}}", str(values[key]))
    return template


def _condition(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in _RANGES]
        if unknown or not value:
            raise SearchRequestError(f"The filter on {name!r} has the bounds {list(value)}; use {', '.join(_RANGES)}.")
        return {"range": {name: dict(value)}}
    if isinstance(value, list | tuple):
        return {"terms": {name: list(value)}}
    return {"term": {name: value}}
