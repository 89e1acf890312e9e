"""WANDS (wayfair/WANDS): furniture search with graded labels. Files are named `.csv` and separated by tabs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import field_validator

from rl_cluster.datasets.preparation.converter import Card, ConverterSettings, Draft, Gain, Judgements
from rl_cluster.datasets.preparation.report import Report
from rl_cluster.datasets.preparation.rows import Row, read_rows
from rl_cluster.datasets.preparation.source import Source
from rl_cluster.datasets.task import Document

LABELS = ("Exact", "Partial", "Irrelevant")
CARD = Card(
    title="WANDS",
    licence="MIT",
    homepage="https://github.com/wayfair/WANDS",
    role="held out",
    published={"questions": 480, "judgements": 233_448, "documents": 42_994},
)


class Settings(ConverterSettings):
    """`gains` are linear: 1, 0.5, 0 is the usual choice and 2, 1, 0 another one, whose figures do not compare."""

    gains: dict[Literal["Exact", "Partial", "Irrelevant"], Gain]

    @field_validator("gains")
    @classmethod
    def _all_labels(cls, gains: dict[str, float]) -> dict[str, float]:
        missing = [label for label in LABELS if label not in gains]
        if missing:
            raise ValueError(f"gains has no {missing[0]}; give a gain to each of {', '.join(LABELS)}")
        return gains


def tasks(source: Source, settings: Settings, report: Report) -> Iterator[Draft]:
    labelled: dict[str, Judgements] = {}
    file = source.one("the labels of WANDS", "label.csv")
    for row in read_rows(source, file, ("query_id", "product_id", "label")):
        report.count("judgements")
        gain = row.chosen("label", settings.gains)
        labelled.setdefault(row.identifier("query_id"), Judgements()).add(row.identifier("product_id"), gain, report)
    file = source.one("the queries of WANDS", "query.csv")
    for row in read_rows(source, file, ("query_id", "query", "query_class")):
        report.count("questions")
        query_id = row.identifier("query_id")
        judged = labelled.get(query_id)
        yield Draft(
            query_id,
            row.text("query"),
            "wands",
            judged.positive if judged else {},
            "test",
            judged_zero=judged.zero if judged else (),
            metadata={"query_class": row.text("query_class")},
            no_gain="only Irrelevant judgements: no positive gain" if judged else "no judgement",
        )


def documents(source: Source, settings: Settings, report: Report) -> Iterator[tuple[str, Document]]:
    for file in source.find("product.csv"):
        columns = ("product_id", "product_name", "product_class", "product_description", "product_features")
        for row in read_rows(source, file, columns):
            parts = (
                ", ".join(part.strip() for part in row.text("product_class").split("|") if part.strip()),
                row.text("category hierarchy" if "category hierarchy" in row.values else "category_hierarchy"),
                row.text("product_description"),
                _features(row.text("product_features")),
            )
            text = "\n".join(part for part in parts if part)
            yield "wands", Document(row.identifier("product_id"), row.text("product_name"), text, _metadata(row))


def _features(joined: str) -> str:
    """`key:value|key:value` as `key: value; key: value`, every pair once."""
    pairs = []
    for feature in joined.split("|"):
        key, colon, value = feature.partition(":")
        shown = f"{key.strip()}: {value.strip()}" if colon else feature.strip()
        if shown and shown not in pairs:
            pairs.append(shown)
    return "; ".join(pairs)


def _metadata(row: Row) -> dict[str, str]:
    names = ("product_class", "rating_count", "average_rating", "review_count")
    return {name: row.text(name, "") for name in names if row.text(name, "")}
