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
    assert header.endswith("seconds  to go")
    assert first.split()[-2:] == ["300.0", "95min"]
    assert last.split()[-2:] == ["60.0", "14min"]
