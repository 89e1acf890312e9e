"""FRAMES (google/frames-benchmark): multi-hop questions over Wikipedia. It links pages and ships no page text.

A page's id is `<wiki>:<title>`. Page text comes from `pages`, a JSONL file of one's own snapshot with `doc_id` (such an id),
`title` and `text`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from urllib.parse import unquote

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, Split
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_all, read_rows
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import Document

CARD = Card(
    title="FRAMES",
    licence="Apache-2.0",
    homepage="https://huggingface.co/datasets/google/frames-benchmark",
    role="training",
    hub=("google/frames-benchmark",),
    revision="58d9fb6330f3ab1316d1eca12e5e8ef23dcc22ef",
    published={"questions": 824},
    ships_documents=False,
)
_PAGE = re.compile(r"https?://([a-z][a-z-]*)(?:\.m)?\.wikipedia\.org/wiki/([^#?]+)")
_NEXT_URL = re.compile(r",\s*(?=https?://|$)")


class Settings(ConverterSettings):
    """`split`: FRAMES publishes one split; who trains on it gives up reporting it. `pages`: the file of page texts."""

    split: Split
    pages: str


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    file = source.one("the questions of FRAMES", "test.tsv")
    for row in read_rows(source, file, ("Prompt", "Answer", "reasoning_types", "wiki_links")):
        report.count("questions")
        links = _links(row)
        pages = [page_id(link) for link in links]
        unresolved = [link for link, page in zip(links, pages, strict=True) if page is None]
        report.count("links that name no page", len(unresolved))
        gains = dict.fromkeys((page for page in pages if page is not None), 1.0)
        report.count("judgements", len(gains))
        metadata: dict[str, object] = {
            "reasoning_types": [kind.strip() for kind in row.text("reasoning_types").split("|")]
        }
        if unresolved:
            metadata["unresolved"] = unresolved
        yield Draft(
            # Older files have one index column more; the row number is the unnamed one.
            row.identifier("" if "" in row.values else "Unnamed: 0"),
            row.text("Prompt"),
            "frames",
            gains,
            settings.split,
            answers=(row.text("Answer").strip(),),
            metadata=metadata,
            no_gain="no link names a page",
        )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    for row in read_all(source, source.find(settings.pages), ("doc_id", "title", "text")):
        yield "frames", Document(row.identifier("doc_id"), row.text("title"), row.text("text"))


def page_id(link: str) -> str | None:
    """`<wiki>:<title>` of a link to Wikipedia, or None where its path is no title."""
    link = link.strip()
    match = _PAGE.match(link if "://" in link else f"https://{link}")
    if match is None:
        return None
    title = unquote(match[2]).replace("_", " ").strip()
    return f"{match[1]}wiki:{title[:1].upper()}{title[1:]}"


def _links(row: Row) -> list[str]:
    """The cell is a Python list as text; an item may hold several URLs joined by commas, the last one with a comma."""
    try:
        items = ast.literal_eval(row.text("wiki_links"))
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise row.wrong("wiki_links", f"is no list ({type(error).__name__})", "write a list of links") from error
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise row.wrong("wiki_links", "is no list of strings", "write a list of links")
    return [url for item in items for url in _NEXT_URL.split(item) if url.strip(" ,")]
