"""`python -m rl_cluster.serve` ends soon when it is told to: at once before it serves, and where Ray is told to end with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

DOCUMENTS = 20_000  # whose vectors take minutes


@contextlib.contextmanager
def serving(
    folder: Path, texts: Iterable[str], tool: str, until: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The command over a corpus of these texts, in a group of processes of its own, when its log says `until`; and the log."""
    corpus, log = folder / "kb.jsonl", folder / "serve.log"
    corpus.write_text("\n".join(json.dumps({"id": f"d{i}", "text": text}) for i, text in enumerate(texts)))
    command = [sys.executable, "-m", "rl_cluster.serve", f"corpora={{kb: {corpus}}}", f"tools=[{tool}]"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HOME": str(folder)}
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, "search.port=8396"],
            cwd=ROOT,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while until not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield process, log
    finally:
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_signal_while_an_index_is_built_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    texts = (f"pump {i} of line {i} " * 20 for i in range(DOCUMENTS))
    with serving(tmp_path, texts, "vector_search", "building or opening") as (process, log):
        process.send_signal(number)
        assert process.wait(30) == 130, log.read_text()
        assert log.read_text().splitlines()[-1] == "interrupted"


def test_serve_signal_to_all_its_processes_at_once_ends_it_within_seconds(tmp_path: Path) -> None:
    """As a manager of services sends it; asked for anything, Ray's client would look for the ended Ray for a minute."""
    with serving(tmp_path, (f"pump {i}" for i in range(20)), "bm25_search", "serving kb at") as (process, log):
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(45) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
