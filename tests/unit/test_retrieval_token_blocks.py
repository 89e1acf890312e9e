"""Texts cut into tokens by several processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_cluster.errors import IndexBuildError
from rl_cluster.retrieval import token_blocks as module
from rl_cluster.retrieval.analysis import AnalysisSettings
from rl_cluster.retrieval.lexical import LexicalIndex
from rl_cluster.retrieval.postings import count_terms
from rl_cluster.retrieval.token_blocks import block_of, token_blocks

TEXTS = [f"Pump {number % 7} of plant PRJ-{number % 50}-B runs {'' if number % 3 else 'not'}" for number in range(500)]


@pytest.fixture(autouse=True)
def blocks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_TEXTS", 40)


def test_block_of_tokens_gives_words_in_order_and_the_length_of_each_text() -> None:
    block = block_of([["b", "a", "b"], [], ["c"]])
    assert block.words == ["b", "a", "c"]
    assert block.numbers.tolist() == [0, 1, 0, 2]
    assert block.lengths.tolist() == [3, 0, 1]


def test_count_terms_of_nothing_and_of_empty_texts_is_empty() -> None:
    for texts in ([], ["", ""]):
        postings, vocabulary = count_terms(token_blocks(texts, AnalysisSettings()))
        assert postings.num_documents == len(texts)
        assert postings.num_terms == len(vocabulary) == 0


@pytest.mark.slow
def test_build_by_two_processes_writes_the_files_of_one(tmp_path: Path) -> None:
    for processes in (1, 2):
        LexicalIndex.build(iter(TEXTS), processes=processes).save(tmp_path / str(processes))
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "2").iterdir())
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


@pytest.mark.slow
def test_token_blocks_killed_process_is_a_typed_error() -> None:
    import multiprocessing

    def texts() -> Iterator[str]:
        for number, text in enumerate(TEXTS * 5):
            if number == 1500:
                for child in multiprocessing.active_children():
                    os.kill(child.pid or 0, signal.SIGKILL)
            yield text

    with pytest.raises(IndexBuildError, match="most likely for lack of memory"):
        list(token_blocks(texts(), AnalysisSettings(), processes=2))


def test_token_blocks_of_a_small_collection_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ProcessPoolExecutor", None)
    blocks = list(token_blocks(TEXTS[: 40 * module.ALONE_BLOCKS], AnalysisSettings(), processes=2))
    assert sum(len(block.lengths) for block in blocks) == 40 * module.ALONE_BLOCKS
