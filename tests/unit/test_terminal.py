"""What a person sees of a running job."""

from __future__ import annotations

import io

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
