"""Trajectories to packed rows, how fast. Ends with one JSON line.

10,000 synthetic trajectories of 7 turns and 4,000 tokens, a quarter of them sampled, in groups of 8 that share a prompt:
rows by the extension rule, advantages, micro-batches of 16,384 positions. Trajectories are made outside of the timing.

`trajectories`: how many were packed. `tokens_per_s`: of all their tokens. `vs_memcpy`: time against copying the same arrays.

    python -m benchmarks.sequences [--trajectories 10000]
"""

from __future__ import annotations

import argparse
import json
import time
from array import array
from dataclasses import fields

import numpy as np

from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.sequences.batching import make_micro_batches
from rl_cluster.sequences.extension import rows_from_trajectory, set_advantages
from rl_cluster.sequences.row import TrainingRow

TURNS, TOKENS, GROUP, BATCH = 7, 4000, 8, 256
SAMPLED = TOKENS // 4 // TURNS
OBSERVED = (TOKENS - SAMPLED * TURNS) // TURNS


def group(rng: np.random.Generator, name: str) -> list[Trajectory]:
    """`GROUP` episodes whose first prompt is the same."""
    prompt = rng.integers(0, 50_000, OBSERVED, dtype=np.int32)
    episodes = []
    for member in range(GROUP):
        turns, so_far = [], prompt
        for _ in range(TURNS):
            sampled = rng.integers(0, 50_000, SAMPLED, dtype=np.int32)
            logprobs = rng.normal(-1, 0.3, SAMPLED).astype(np.float32)
            ids, values = array("i"), array("f")
            ids.frombytes(so_far.tobytes())
            values.frombytes(logprobs.tobytes())
            turns.append(Turn(ids, array("i", sampled.tolist()), values, array("i", [0]) * SAMPLED))
            so_far = np.concatenate([so_far, sampled, rng.integers(0, 50_000, OBSERVED, dtype=np.int32)])
        episodes.append(Trajectory(f"{name}-{member}", name, name, turns, Outcome.FINISHED, reward=0.0))
    return episodes


def pack(trajectories: list[Trajectory]) -> list[TrainingRow]:
    """What the coordinator and a learner rank do with finished groups."""
    rows: list[TrainingRow] = []
    for trajectory in trajectories:
        rows.extend(rows_from_trajectory(trajectory).rows)
    set_advantages(rows, {t.trajectory_id: np.full(t.num_sampled, 0.5) for t in trajectories})
    make_micro_batches(rows, 16_384, share_prefix=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trajectories", type=int, default=10_000)
    wanted = parser.parse_args().trajectories
    rng = np.random.default_rng(0)
    names = [field.name for field in fields(TrainingRow) if field.name not in ("trajectory_id", "group_id")]
    packing = copying = 0.0
    done = tokens = 0
    while done < wanted:
        batch = [episode for index in range(BATCH // GROUP) for episode in group(rng, f"{done}-{index}")]
        started = time.perf_counter()
        rows = pack(batch)
        packed = time.perf_counter()
        copies = [getattr(row, name).copy() for row in rows for name in names]
        copied = time.perf_counter()
        packing, copying = packing + packed - started, copying + copied - packed
        done, tokens = done + len(batch), tokens + sum(len(row) for row in rows)
        del copies
    print(
        json.dumps(
            {"trajectories": done, "tokens_per_s": round(tokens / packing), "vs_memcpy": round(packing / copying, 2)}
        )
    )


if __name__ == "__main__":
    main()
