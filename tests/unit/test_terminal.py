"""What a person sees of a running job."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from rl_cluster.tracking.terminal import Terminal
from tests.helpers.configuration import load_config


def test_terminal_step_line_says_how_long_the_rest_takes() -> None:
    shown = io.StringIO()
    terminal = Terminal(Console(file=shown, width=160), load_config([]))
    names = (
        "rollout/reward/mean",
        "rollout/failure_rate",
        "rollout/turns/mean",
        "staleness/age_max",
        "system/worker_idle",
    )
    names += ("analysis/zero_adv_groups", "training/num_groups", "learner/clip_fraction", "system/learner_idle")
    for step, seconds in ((1, 300.0), *((step, 60.0) for step in range(2, 7))):
        metrics = dict.fromkeys(names, 0.0) | {"timing_s/step": seconds}
        terminal.show({"kind": "step", "time": terminal.started, "step": step, "of": 20, "metrics": metrics})
    header, first, *_, last = shown.getvalue().splitlines()
    assert header.endswith("seconds  RL left")
    assert first.split()[-2:] == ["300.0", "95min"]
    assert last.split()[-2:] == ["60.0", "14min"]


def test_terminal_evaluation_of_one_question_says_that_it_has_no_interval() -> None:
    shown = io.StringIO()
    terminal = Terminal(Console(file=shown, width=160), load_config([]))
    summary = {"ndcg@10": 0.5, "failure_rate": 0.0, "ci95": None}
    event = {"kind": "evaluation", "time": terminal.started, "name": "before", "temperature": 0, "seconds": 3.0}
    terminal.show({**event, "summary": summary})
    assert "nDCG@10 0.500 (too few questions for an interval), failures 0.0%" in shown.getvalue()


def test_terminal_finish_names_the_best_model_beside_the_final_one(tmp_path: Path) -> None:
    shown = io.StringIO()
    terminal = Terminal(Console(file=shown, width=160), load_config(["tracking=none"]))
    metrics = {"val/ndcg@10": 0.25, "val/failure_rate": 0.0, "val/reward/num_prompts": 8.0}
    terminal.show({"kind": "validation", "time": terminal.started, "step": 8, "metrics": metrics})
    terminal.finish("table", tmp_path, {"step": 4.0, "ndcg@10": 0.375})
    last = "(validation nDCG@10 0.375 at step 4, the last validation 0.250)"
    assert f"best       {tmp_path / 'best'}   {last}" in shown.getvalue()


@pytest.mark.parametrize(("of", "lines"), [(10, 10), (100, 20 + 1), (None, 20 + 1)])
def test_terminal_short_warm_up_shows_each_step(of: int | None, lines: int) -> None:
    shown = io.StringIO()
    terminal = Terminal(Console(file=shown, width=160), load_config([]))
    for step in range(1, (of or 100) + 1):
        event = {
            "kind": "supervised",
            "time": terminal.started,
            "stage": "warm-up",
            "step": step,
            "of": of,
            "loss": 1.0,
        }
        terminal.show(event)
    assert len(shown.getvalue().splitlines()) == lines
