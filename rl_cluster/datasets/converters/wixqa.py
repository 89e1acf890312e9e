"""WixQA (Wix/WixQA): questions of customers over one help centre. Rows have no id: a query id is `<config>/<row>`, from 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import read_all
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import Document

CARD = Card(
    title="WixQA",
    licence="MIT",
    homepage="https://huggingface.co/datasets/Wix/WixQA",
    role="held out",
    hub=("Wix/WixQA",),
    published={"documents": 6_221},
)
_KINDS = {kind: kind for kind in ("article", "feature_request", "known_issue")}
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)")
_URL = re.compile(r"(?:https?://|www\.)[^\s<>\"')\]]+")


class Settings(ConverterSettings):
    """`configs`: the question sets. The synthetic one copies its articles' words: no headline numbers from it."""

    configs: tuple[Literal["wixqa_expertwritten", "wixqa_simulated", "wixqa_synthetic"], ...] = Field(
        strict=False, min_length=1
    )


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    for config in settings.configs:
        files = source.some(f"the question set {config}", f"{config}/*.jsonl", f"{config}/*.parquet", f"{config}.jsonl")
        for index, row in enumerate(read_all(source, files, ("question", "answer", "article_ids"))):
            report.count("questions")
            gains = report.gains(row.strings("article_ids"))
            report.count("judgements", len(gains))
            yield Draft(
                f"{config}/{index}",
                row.text("question"),
                "wixqa",
                gains,
                "test",
                answers=(row.text("answer"),),
                no_gain="no article_ids",
            )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    files = source.find("wix_kb_corpus/*.jsonl", "wix_kb_corpus/*.parquet", "wix_kb_corpus.jsonl")
    for row in read_all(source, files, ("id", "contents"), ("url", "article_type")):
        metadata = {"article_type": row.chosen("article_type", _KINDS), "url": row.text("url", "")}
        yield "wixqa", Document(row.identifier("id"), "", without_urls(row.text("contents")), metadata)


def without_urls(text: str) -> str:
    """Text as it is indexed: of a link its anchor stays, bare URLs go."""
    return _URL.sub("", _LINK.sub(r"\1", text))
