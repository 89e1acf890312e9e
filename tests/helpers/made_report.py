"""A report of made-up episodes with hostile texts, for tests of its files and for looking at it."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.comparison import compare_systems
from rl_cluster.evaluation.measures import MeasureSettings, Prices
from rl_cluster.evaluation.records import record_of
from rl_cluster.evaluation.report import ReportContent, first_views, question_views, write_report

HOSTILE = "</script><script>window.broken = true</script><img src=x onerror='window.broken=true'>"
SETTINGS = MeasureSettings(resamples=1000, pass_k=(1, 2))


def tasks() -> list[Task]:
    """Sixty questions of two data sets."""
    made = []
    for number in range(60):
        dataset = "wands" if number % 2 else "enterprise_kb"
        gains = {f"d{number}": 1.0, f"e{number}": 0.5}
        made.append(
            Task(f"t{number}", f"Which page is about pump {number}? {HOSTILE}", dataset, gains, dataset=dataset)
        )
    return made


def play(task: Task, skill: float, failing: float, rng: random.Random) -> Trajectory:
    """Two or three turns, then a ranking whose quality follows `skill`."""
    turns = []
    for place in range(rng.choice((2, 3))):
        found = [f"x{place}", task.task_id.replace("t", "d")] if rng.random() < 0.7 else [f"x{place}"]
        call = ToolCall("bm25_search", {"query": f"pump <b>{place}</b>"}, found_ids=tuple(found))
        observation = "\n".join(f"{d} | a title | text {HOSTILE}" for d in found)
        turns.append(
            Turn(
                [1] * 200,
                [2] * 20,
                [-0.1] * 20,
                [0] * 20,
                "stop",
                f"bm25_search: pump <b>{place}</b>",
                [call],
                [observation],
            )
        )
    outcome = Outcome.FINISHED
    ranking = []
    if rng.random() < failing:
        outcome = rng.choice((Outcome.TURN_LIMIT, Outcome.NO_ANSWER, Outcome.TOKEN_LIMIT))
    else:
        gold = list(task.gains)
        ranking = [d if rng.random() < skill else f"y{i}" for i, d in enumerate(gold)]
        turns.append(Turn([1] * 300, [2] * 8, [-0.1] * 8, [0] * 8, "stop", f"answer: {' '.join(ranking)}"))
    started = 100.0
    return Trajectory(
        "x",
        task.task_id,
        "g",
        turns,
        outcome,
        ranking=ranking,
        started_at=started,
        finished_at=started + 1 + rng.random(),
    )


def made_report() -> ReportContent:
    """Before, after and a baseline, a learning curve, drifts and an alarm."""
    rng = random.Random(0)
    questions = tasks()
    played = {
        "before": [play(task, 0.35, 0.25, rng) for task in questions],
        "after": [play(task, 0.75, 0.05, rng) for task in questions],
        "bm25": [play(task, 0.5, 0.0, rng) for task in questions],
    }
    records = {name: [record_of(t, q) for t, q in zip(found, questions, strict=True)] for name, found in played.items()}
    shown = {name: first_views(questions, found) for name, found in played.items()}
    prices = {name: Prices(0.2, 0.8) for name in ("before", "after")}
    pairs = [("before", "after"), ("bm25", "after")]
    comparison = compare_systems(records, pairs, SETTINGS, prices, {"recipe": ["after", "bm25"]})
    change = comparison["pairs"][0]["overall"]
    drift = {**change, "ndcg@10": -0.21, "ci95": [-0.3, -0.12], "injected": 0}
    return ReportContent(
        title="search <cpu>",
        comparison=comparison,
        facts={"questions": "60 of two sets", "model": HOSTILE},
        history=[
            {
                "step": s,
                "rollout/reward/mean": -0.2 + 0.05 * s,
                "analysis/reward_variance_across_groups": 0.04,
                "training/num_groups": 8,
            }
            for s in range(1, 15)
        ],
        validations=[
            {"step": s, "mean": 0.3 + 0.02 * s, "low": 0.22 + 0.02 * s, "high": 0.38 + 0.02 * s} for s in (0, 7, 14)
        ],
        questions=question_views(questions, shown, pairs[0]),
        drifts=[
            {
                "name": "removed",
                "description": "a tenth of the documents is gone",
                "systems": {"after": drift, "bm25": drift},
                "pairs": {"after - bm25": {**drift, "ndcg@10": 0.123}},
                "does_not_apply": [],
            },
            {
                "name": "slow",
                "description": "answers are late",
                "systems": {"after": {**drift, "ndcg@10": 0.01, "ci95": [-0.02, 0.04], "injected": 17}},
                "pairs": {},
                "does_not_apply": ["bm25"],
            },
        ],
        alarms=["reward rose by 0.4 while nDCG@10 is flat"],
    )


if __name__ == "__main__":
    content = made_report()
    print(write_report(Path(sys.argv[1]), content, {"comparison": content.comparison}))
