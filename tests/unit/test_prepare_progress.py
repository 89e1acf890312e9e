"""What a person sees while a data set is prepared: how far, how fast, and how long still."""

from __future__ import annotations

import io

from rich.console import Console

from rl_cluster.datasets.preparation.progress import PreparationProgress


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def read_a_file(terminal: bool) -> str:
    """Half of a file in twenty seconds, then all of it; what was shown on the way."""
    clock, shown = Clock(), io.StringIO()
    console = Console(file=shown, width=110, force_terminal=terminal, get_time=clock, legacy_windows=False)
    with PreparationProgress(console) as progress:
        progress.reading("corpus.jsonl", 0, 4000)
        for step in range(1, 5):
            clock.now += 5.0
            progress.documents += 500
            progress.reading("corpus.jsonl", 500 * step, 4000)
    return shown.getvalue()


def test_progress_on_a_terminal_shows_share_rate_and_time_left() -> None:
    shown = read_a_file(terminal=True)
    assert "corpus.jsonl" in shown
    assert "50%" in shown
    assert "2,000 documents, 100/s" in shown
    assert "0:00:20" in shown


def test_progress_in_a_log_is_a_line_now_and_then() -> None:
    lines = read_a_file(terminal=False).splitlines()
    assert lines == ["corpus.jsonl: 50%, 2,000 documents, 100/s, 20 s left"]
