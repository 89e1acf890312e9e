"""Documents of a folder that was prepared before, for questions that come without any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rl_cluster.datasets.corpus import CORPUS_SCHEMA, corpus_names
from rl_cluster.datasets.task import Document
from rl_cluster.errors import DataError

_BATCH_ROWS = 512


def prepared_corpora(folder: Path) -> list[str]:
    """The names of its corpora. Raises DataError where `corpus.parquet` is missing or no Parquet file."""
    return corpus_names(_file(folder))


def prepared_documents(folder: Path) -> Iterator[tuple[str, Document, tuple[str, int]]]:
    """(corpus, document, (file, row)) of `corpus.parquet` in its order. Raises DataError where it is missing or not prepared."""
    path = _file(folder)
    try:
        file = pq.ParquetFile(path)
        if file.schema_arrow.names != CORPUS_SCHEMA.names:
            raise DataError(
                f"documents={folder}: corpus.parquet has other columns than {', '.join(CORPUS_SCHEMA.names)}; prepare it first."
            )
        row = 0
        for batch in file.iter_batches(_BATCH_ROWS):
            for corpus, doc_id, title, text, metadata, locale in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            ):
                row += 1
                yield corpus, Document(doc_id, title, text, json.loads(metadata), locale), (str(path), row)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: it is no whole Parquet file ({error}); prepare it again.") from error


def _file(folder: Path) -> Path:
    path = folder / "corpus.parquet"
    if not path.is_file():
        raise DataError(f"documents={folder}: it has no corpus.parquet; give a folder that rl_cluster.prepare wrote.")
    return path
