"""`python -m rl_cluster.serve` ends at once when it is told to before it serves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

DOCUMENTS = 20_000  # whose vectors take minutes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_signal_while_an_index_is_built_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    corpus, log = tmp_path / "kb.jsonl", tmp_path / "serve.log"
    corpus.write_text(
        "\n".join(json.dumps({"id": f"d{i}", "text": f"pump {i} of line {i} " * 20}) for i in range(DOCUMENTS))
    )
    command = [sys.executable, "-m", "rl_cluster.serve", f"corpora={{kb: {corpus}}}", "tools=[vector_search]"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HOME": str(tmp_path)}
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, "search.port=8396"], cwd=ROOT, env=environment, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 120
        while "building or opening" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        process.send_signal(number)
        assert process.wait(30) == 130
        assert log.read_text().splitlines()[-1] == "interrupted"
    finally:
        if process.poll() is None:
            process.kill()
