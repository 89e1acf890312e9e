"""Corpora larger than one Arrow array can hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_cluster.datasets.corpus import Corpus, read_corpus, write_corpus
from rl_cluster.datasets.task import Document


def test_corpus_of_large_texts_is_the_same_in_smaller_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An Arrow array of strings holds 2 GiB."""
    documents = [Document(f"d{number}", "title", "text " * number) for number in range(9)]
    whole = Corpus.from_documents("kb", documents)
    monkeypatch.setattr("rl_cluster.datasets.corpus._BATCH_CHARACTERS", 40)
    cut = Corpus.from_documents("kb", documents)
    assert write_corpus(tmp_path / "c.parquet", "kb", documents) == 9
    assert list(cut) == list(whole) == list(read_corpus(tmp_path / "c.parquet")) == documents
    assert cut.digest() == whole.digest()
