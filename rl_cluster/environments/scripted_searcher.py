"""A searcher by rule for `enterprise_kb`: an upper mark to measure a model against, and a source of demonstrations.

It sees what a model sees and nothing else: the question, and of each hit the id, the title and the snippet. It asks by
meaning for the page that fits the description, reads the identifier there, asks by words for the kind of document that
the question wants, follows a page to a new identifier where a notice says so, and ranks by what titles say.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from rl_cluster.environments.hits import FoundDocument, parse_documents

IDENTIFIER = re.compile(r"\b[A-Z]{3}-\d{4}-[A-Z]\b")
_MOVED = re.compile(rf"({IDENTIFIER.pattern}) (?:is )?now filed under ({IDENTIFIER.pattern})")
_AGE = re.compile(r"(?:revision|version|edition) (\d+)")
_DESCRIPTION = re.compile(r"\b(?:system|product|tool|solution|offering|thing) (?:that|which) (.+?)[?.]?$")
_WORD = re.compile(r"[a-z]+")

# What a question may say -> the kind of document it wants, as titles name it.
_CUES = {
    "runbook": ("runbook", "steps", "recover", "bring back"),
    "installation guide": ("installation", "set up", "mount", "put"),
    "price list": ("price", "cost", "pay", "charge"),
    "incident review": ("incident", "went wrong", "outage", "why did it fail"),
    "audit report": ("audit", "inspectors", "compliance", "controls"),
    "training plan": ("training", "newcomers", "lessons", "course"),
}


@dataclass(frozen=True)
class ScriptedSearch:
    """A search with `vector_search` or `bm25_search`."""

    tool: str
    query: str
    k: int


def scripted_search(question: str, k: int = 4) -> Generator[ScriptedSearch, str, list[str]]:
    """Yields tool calls, takes the observation text of each by `send`, and returns the ranking of document ids.

    It makes two searches, or three where the identifier it found was replaced.
    """
    first = parse_documents((yield ScriptedSearch("vector_search", description(question), k)))
    page = _page_for(question, first)
    if page is None:
        return [hit.doc_id for hit in first]
    number = _identifier_of(page)
    kind = wanted_kind(question)
    found = parse_documents((yield ScriptedSearch("bm25_search", f"{number} {kind}", k)))
    newer = _new_identifier(number, [*first, *found])
    if newer is not None:
        found += parse_documents((yield ScriptedSearch("bm25_search", f"{newer} {kind}", k)))
    return _ranking(newer or number, number, kind, page, found)


def wanted_kind(question: str) -> str:
    """The kind of document a question wants; the earliest cue decides, since the description may hold others."""
    text = question.lower()
    places = [
        (match.start(), kind)
        for kind, cues in _CUES.items()
        for cue in cues
        if (match := re.search(rf"\b{cue}", text)) is not None
    ]
    # Without any cue a question about how something works is best served by its runbook.
    return min(places)[1] if places else "runbook"


def _is_page(hit: FoundDocument) -> bool:
    title = hit.title.lower()
    return (
        IDENTIFIER.search(hit.title) is not None and not any(kind in title for kind in _CUES) and "filed" not in title
    )


def description(question: str) -> str:
    """What the question says about the product, without what it wants to know: the better query by meaning."""
    found = _DESCRIPTION.search(question)
    return found.group(1) if found else question


def _page_for(question: str, hits: list[FoundDocument]) -> FoundDocument | None:
    """The page whose title and snippet share most words with the place that the question names; among equals the first."""
    pages = [hit for hit in hits if _is_page(hit)]
    place = _words(description(question).rpartition(" for ")[2])
    return max(pages, key=lambda page: len(place & _words(f"{page.title} {page.snippet}")), default=None)


def _words(text: str) -> set[str]:
    """The words of a text, plurals as singulars, without short words."""
    words = (word.removesuffix("s") for word in _WORD.findall(text.lower()) if len(word) > 2)
    return {word[:-2] + "y" if word.endswith("ie") else word for word in words}


def _identifier_of(page: FoundDocument) -> str:
    return IDENTIFIER.findall(page.title)[0]


def _new_identifier(number: str, hits: list[FoundDocument]) -> str | None:
    for hit in hits:
        for old, new in _MOVED.findall(f"{hit.title} . {hit.snippet}"):
            if old == number:
                return new
    return None


def _ranking(number: str, old_number: str, kind: str, page: FoundDocument, hits: list[FoundDocument]) -> list[str]:
    """The newest guide, the one before it, the way there, mails about it, then whatever is older still."""
    wanted = [hit for hit in hits if number in hit.title and kind in hit.title.lower()]
    guides = sorted((hit for hit in wanted if hit.title.lower().startswith(kind)), key=_recency, reverse=True)
    mails = [hit for hit in wanted if hit not in guides]
    notices = [hit for hit in hits if old_number in hit.title and "filed" in hit.title]
    order = [*guides[:2], page, *notices, *mails, *guides[2:]]
    return list(dict.fromkeys(hit.doc_id for hit in order))


def _recency(hit: FoundDocument) -> tuple[bool, int]:
    age = _AGE.search(hit.title)
    return "superseded" not in hit.title, int(age.group(1)) if age else 0
