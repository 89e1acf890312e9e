"""ESCI (amazon-science/esci-data): product search in three locales with four labels.

A product's id is `<locale>:<ASIN>`, since one ASIN has other text in each locale; a question searches its locale's corpus.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, field_validator

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, Gain, Judgements
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_all, read_rows
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import Document

LOCALES = {"us": "us", "es": "es", "jp": "jp"}
CARD = Card(
    title="ESCI (Shopping Queries)",
    licence="Apache-2.0",
    homepage="https://github.com/amazon-science/esci-data",
    role="training",
    published={
        "questions, small": 48_300,
        "judgements, small": 1_118_011,
        "questions, large": 130_652,
        "judgements, large": 2_621_288,
    },
)
_SPLITS = {"train": "train", "test": "test"}
_PARTS = ("title", "brand", "color", "bullet_point", "description")
# A copy that is in use renames the columns of products.
_RENAMED = {"bullet_point": "bullets", "id": "id", "locale": "locale"}
_BLOCK = re.compile(r"</?(?:br|p|div|ul|ol|li|h[1-6]|table|tr|td|th)\b[^<>]*>", re.IGNORECASE)
_INLINE = re.compile(r"</?[a-zA-Z][^<>]*>")
_BLANKS = re.compile(r"[ \t]+")


class Settings(ConverterSettings):
    """`gains` are the paper's. `version`: `small` is the ranking task, `large` all judgements. `locales`: null for all.

    The official `prepare_trec_eval_files.py` swaps Substitute and Complement; figures made with it do not compare.
    """

    gains: dict[Literal["E", "S", "C", "I"], Gain]
    version: Literal["small", "large"]
    locales: tuple[Literal["us", "es", "jp"], ...] | None = Field(strict=False)
    examples: str
    products: str

    @field_validator("gains")
    @classmethod
    def _all_labels(cls, gains: dict[str, float]) -> dict[str, float]:
        missing = [label for label in "ESCI" if label not in gains]
        if missing:
            raise ValueError(f"gains has no {missing[0]}; give a gain to each of E, S, C, I")
        return gains


@dataclass
class _Query:
    text: str
    locale: str
    split: str
    judged: Judgements = field(default_factory=Judgements)


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    sources = _query_sources(source)
    for query_id, query in _queries(source, settings, report).items():
        report.count(f"questions, {settings.version}")
        yield Draft(
            query_id,
            query.text,
            f"esci/{query.locale}",
            query.judged.positive,
            query.split,
            locale=query.locale,
            judged_zero=query.judged.zero,
            metadata={"source": sources[query_id]} if query_id in sources else {},
            no_gain="only Irrelevant judgements: no positive gain",
        )


def _queries(source: Source, settings: Settings, report: Report) -> dict[str, _Query]:
    queries: dict[str, _Query] = {}
    version = f"{settings.version}_version"
    file = source.one("the judgements of ESCI", settings.examples)
    columns = ("query", "query_id", "product_id", "product_locale", "esci_label", version, "split")
    for row in read_rows(source, file, columns):
        locale = row.chosen("product_locale", LOCALES)
        if row.raw(version) not in (0, 1):
            raise row.wrong(version, "is neither 0 nor 1", "write one of both")
        if row.raw(version) == 0 or (settings.locales is not None and locale not in settings.locales):
            report.count(f"judgements outside of {version} and locales")
            continue
        report.count(f"judgements, {settings.version}")
        query_id, text, split = row.identifier("query_id"), row.text("query"), row.chosen("split", _SPLITS)
        query = queries.setdefault(query_id, _Query(text, locale, split))
        if (query.text, query.locale, query.split) != (text, locale, split):
            raise row.wrong(
                "query_id", "stands for two different questions, locales or splits", "make query ids unique"
            )
        query.judged.add(f"{locale}:{row.identifier('product_id')}", row.chosen("esci_label", settings.gains), report)
    return queries


def _query_sources(source: Source) -> dict[str, str]:
    files = source.find("shopping_queries_dataset_sources.csv")
    return {row.identifier("query_id"): row.text("source") for row in read_all(source, files, ("query_id", "source"))}


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    columns = [f"product_{part}" for part in ("id", "locale", *_PARTS)]
    for file in source.find(settings.products):
        published = file.plain_name.endswith(".parquet")
        for row in read_rows(source, file, columns if published else ()):
            product = row if published else _renamed(row)
            locale = product.chosen("product_locale", LOCALES)
            if settings.locales is not None and locale not in settings.locales:
                continue
            title, *parts = (_plain(product.text(f"product_{part}", "")) for part in _PARTS)
            text = "\n".join(part for part in parts if part)
            doc_id = f"{locale}:{product.identifier('product_id')}"
            yield f"esci/{locale}", Document(doc_id, title, text, locale=locale)


def _renamed(row: Row) -> Row:
    values = row.values.get("fields", row.values)
    if not isinstance(values, Mapping):
        raise row.wrong("fields", "is no object", "write the product's columns")
    named = {f"product_{part}": values.get(_RENAMED.get(part, part)) for part in ("id", "locale", *_PARTS)}
    return Row(row.file, row.number, named)


def _plain(text: str) -> str:
    """A field without HTML; the word `None` stands for a missing one."""
    if "<" in text:
        text = _INLINE.sub("", _BLOCK.sub(" ", text))
    if "&" in text:
        text = html.unescape(text)
    text = _BLANKS.sub(" ", text).strip()
    return "" if text == "None" else text
