"""What it is worth to compute once what the samples of a task have in common. Ends with one JSON line.

Rows as a step of `experiment=search_cpu` has them: 4 tasks, 8 samples of each, a prompt of 110 tokens, two calls of 20 and
16 tokens with answers of 120, and a ranking of 16 tokens; the bundled model, two cores, float32. Of the samples of a task,
`--queries` different ones make the first call, and each of them makes `--queries` different second calls at most. Each side
runs in a process of its own, one after the other.

speedup           seconds of one update without sharing over those with it
speedup_prompts   the same, where prompts alone are shared: all samples differ from their first call on
positions_ratio   token positions that go through the model, without sharing over with it
grad_rel_diff     largest over tensors of |a - b| / |b|, with sharing against without

    python -m benchmarks.shared_prefixes [--queries 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks.learner import largest_difference, learner, measured_update, record_log_probs

TASKS, SAMPLES = 4, 8
PROMPT, CALLS, ANSWERED, RANKING = 110, (20, 16), 120, 16
MICRO_BATCH_TOKENS = 1024


def rows_of(queries: int) -> list[Any]:
    """Training rows of one step."""
    from rl_cluster.episodes.trajectory import Trajectory, Turn
    from rl_cluster.errors import Outcome
    from rl_cluster.sequences.extension import rows_from_trajectory, set_advantages

    rng = np.random.default_rng(0)

    def tokens(number: int) -> list[int]:
        return rng.integers(5, 40_000, number).tolist()

    rows: list[Any] = []
    for task in range(TASKS):
        prompt = tokens(PROMPT)
        written: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for sample in range(SAMPLES):
            so_far, turns, path = prompt, [], ()
            for size in CALLS:
                path = (*path, int(rng.integers(queries)))
                call, answer = written.setdefault(path, (tokens(size), tokens(ANSWERED)))
                turns.append(Turn(so_far, call, [-1.0] * size, [0] * size))
                so_far = [*so_far, *call, *answer]
            turns.append(Turn(so_far, tokens(RANKING), [-1.0] * RANKING, [0] * RANKING))
            name = f"t{task}-{sample}"
            made = rows_from_trajectory(Trajectory(name, name, f"g{task}", turns, Outcome.FINISHED)).rows
            set_advantages(made, {name: np.full(made[0].num_trained, float(rng.normal()))})
            rows += made
    return rows


def one_side(share: bool, queries: int, gradients: str) -> dict[str, float]:
    """Seconds and positions of one update; its gradients go to a file."""
    rank, rows = learner(MICRO_BATCH_TOKENS, checkpointing=False, share_prefix=share), rows_of(queries)
    record_log_probs(rank, rows, rows_of(queries))
    return measured_update(rank, rows, gradients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", type=int, default=2, help="different calls where a task's samples stand alike")
    parser.add_argument("--side", choices=["alone", "shared", "prompts_alone", "prompts_shared"])
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.side:
        # So many calls that no two samples make the same.
        queries = 10**9 if options.side.startswith("prompts") else options.queries
        shared = options.side.endswith("shared")
        print(json.dumps(one_side(shared, queries, f"{options.folder}/{options.side}.pt")))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = {}
        for side in ("alone", "shared", "prompts_alone", "prompts_shared"):
            command = [sys.executable, "-m", "benchmarks.shared_prefixes", "--side", side, "--folder", folder]
            command += ["--queries", str(options.queries)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[side] = json.loads(output.splitlines()[-1])
            print(side, results[side], flush=True)
        difference = largest_difference(f"{folder}/shared.pt", f"{folder}/alone.pt")
    alone, shared = results["alone"], results["shared"]
    prompts = results["prompts_alone"]["seconds"] / results["prompts_shared"]["seconds"]
    print(
        json.dumps(
            {
                "queries": options.queries,
                "speedup": round(alone["seconds"] / shared["seconds"], 2),
                "speedup_prompts": round(prompts, 2),
                "positions_ratio": round(alone["positions"] / shared["positions"], 2),
                "grad_rel_diff": difference,
            }
        )
    )


if __name__ == "__main__":
    main()
