"""How far gradients in float32 are from each other and from float64, tensor by tensor. Ends with one JSON line.

The rows of benchmarks.learner, fewer of them: merged rows, one row per turn, and a bare transformers loop with full logits in float32
and in float64, each in a process of its own. All figures are the largest over tensors of |a - b| / |b|.

merged_vs_per_turn      what benchmarks.learner calls grad_rel_diff
float32_vs_float64      the bare loop against itself in float64: what float32 costs whoever computes it
merged_vs_float64, per_turn_vs_float64
whole_merged_vs_per_turn    |a - b| / |b| of all tensors as one
worst_tensor            where merged and per turn differ most

    python -m benchmarks.gradient_precision [--trajectories 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learner import learner, measured_update, record_log_probs, rows_of

SIDES = ("merged", "per_turn", "float32", "float64")
LOG_PROBS = "log_probs.npy"


def ours(side: str, trajectories: int, folder: Path) -> None:
    """The learner's update; the merged side records the log-probs that all sides take for the sampler's."""
    per_turn = side == "per_turn"
    rank, rows = learner(2048, checkpointing=False, share_prefix=not per_turn), rows_of(trajectories, per_turn)
    record_log_probs(rank, rows, rows_of(trajectories, per_turn=False))
    if not per_turn:
        np.save(folder / LOG_PROBS, np.concatenate([row.behaviour_logprobs for row in rows]))
    measured_update(rank, rows, str(folder / f"{side}.pt"))


def bare(side: str, trajectories: int, folder: Path) -> None:
    """Forward and backward over full logits in the type that `side` names."""
    import torch
    from transformers import AutoModelForCausalLM

    from rl_cluster.models.source import resolve_model

    dtype = getattr(torch, side)
    torch.set_num_threads(2)
    path = resolve_model("bundled:smollm2-135m-instruct")
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    rows = rows_of(trajectories, per_turn=False)
    recorded = np.load(folder / LOG_PROBS)
    for row in rows:
        behaviour, recorded = recorded[: len(row)], recorded[len(row) :]
        ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
        logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, :-1], -1)
        picked = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
        columns = (behaviour, row.advantages, row.loss_mask)
        sampler, advantage, mask = (torch.from_numpy(values[1:]).to(dtype) for values in columns)
        (-(torch.exp(picked - sampler) * advantage * mask).sum()).backward()
    torch.save({f"model.{name}": p.grad for name, p in model.named_parameters()}, folder / f"{side}.pt")


def compare(folder: Path) -> dict[str, Any]:
    import torch

    found = {
        side: {name: t.double() for name, t in torch.load(folder / f"{side}.pt", weights_only=True).items()}
        for side in SIDES
    }
    assert all(found[side].keys() == found["merged"].keys() for side in SIDES)

    def differences(a: str, b: str) -> dict[str, float]:
        return {name: float((found[a][name] - t).norm() / t.norm().clamp(min=1e-300)) for name, t in found[b].items()}

    def whole(a: str, b: str) -> float:
        gaps = sum(float((found[a][name] - t).norm()) ** 2 for name, t in found[b].items())
        return (gaps / sum(float(t.norm()) ** 2 for t in found[b].values())) ** 0.5

    merging = differences("merged", "per_turn")
    return {
        "merged_vs_per_turn": max(merging.values()),
        "float32_vs_float64": max(differences("float32", "float64").values()),
        "merged_vs_float64": max(differences("merged", "float64").values()),
        "per_turn_vs_float64": max(differences("per_turn", "float64").values()),
        "whole_merged_vs_per_turn": whole("merged", "per_turn"),
        "worst_tensor": max(merging, key=lambda name: merging[name]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trajectories", type=int, default=2)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.side:
        play = ours if options.side in ("merged", "per_turn") else bare
        play(options.side, options.trajectories, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        for side in SIDES:
            command = [sys.executable, "-m", "benchmarks.gradient_precision", "--side", side, "--folder", folder]
            subprocess.run([*command, "--trajectories", str(options.trajectories)], check=True)
            print(side, "is done", flush=True)
        print(json.dumps({"trajectories": options.trajectories, **compare(Path(folder))}))


if __name__ == "__main__":
    main()
