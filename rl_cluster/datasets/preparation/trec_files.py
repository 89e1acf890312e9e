"""TREC topics and qrels, as lines of text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rl_cluster.datasets.preparation.rows import read_lines, read_rows, read_text
from rl_cluster.datasets.preparation.source import Source, SourceFile
from rl_cluster.errors import DataError

_TOPIC = re.compile(r"<top>(.*?)</top>", re.DOTALL)
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)")
_TITLE = re.compile(r"<title>\s*(?:Topic:)?\s*([^<]+)")


@dataclass(frozen=True)
class Judgement:
    """One judged pair; grades below 0 are judged non-relevant."""

    query_id: str
    doc_id: str
    gain: float


def read_qrels(source: Source, file: SourceFile) -> Iterator[Judgement]:
    """`query Q0 document grade` (TREC), or `query document grade` with a header (BEIR).

    Raises DataError for another line, and for a grade that is not finite.
    """
    for number, line in read_lines(source, file):
        cells = _decoded(file, number, line).split()
        grade = _number(cells[-1]) if cells else None
        if len(cells) == 3 and number == 1 and grade is None:
            continue
        if len(cells) not in (3, 4) or grade is None:
            shown = line.decode("utf-8", "replace").strip()[:80]
            raise DataError(
                f"{file.name}: row {number}: {shown!r} is no judgement; write `query Q0 document grade`, or download it again."
            )
        if not math.isfinite(grade):
            raise DataError(f"{file.name}: row {number}: the grade {cells[-1]!r} is not finite; write a number.")
        yield Judgement(cells[0], cells[-2], grade)


def read_topics(source: Source, file: SourceFile) -> Iterator[tuple[str, str]]:
    """(query id, text) of topics as `id TAB text`, as `<top>` blocks, or as JSONL."""
    if file.plain_name.endswith((".jsonl", ".json", ".parquet")):
        for row in read_rows(source, file, ()):
            id_column = next((name for name in ("query_id", "qid", "_id", "id") if name in row.values), "query_id")
            text_column = next((name for name in ("query", "text", "question", "title") if name in row.values), "query")
            yield row.identifier(id_column), row.text(text_column)
        return
    if "<top>" in (text := read_text(source, file)):
        for number, block in enumerate(_TOPIC.findall(text), start=1):
            found, title = _NUMBER.search(block), _TITLE.search(block)
            if found is None or title is None:
                raise DataError(f"{file.name}: topic {number} lacks <num> or <title>; correct it.")
            yield found[1], " ".join(title[1].split())
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            query_id, tab, query = line.partition("\t")
            if not tab or not query_id.strip():
                raise DataError(f"{file.name}: row {number}: {line[:80]!r} has no tab; write `id TAB question`.")
            yield query_id.strip(), query


def _decoded(file: SourceFile, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file.name}: row {number} is no UTF-8 ({error.reason}); save the file as UTF-8.") from error


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
