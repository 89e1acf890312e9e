"""The learner's update on the bundled model: merged rows, selected positions, memory. Ends with one JSON line.

16 trajectories of 7 turns and 2,048 tokens, a quarter of them trained, in two groups that share a prompt; two cores,
float32. Every side runs in a process of its own, one at a time; those that are timed take turns, a micro-batch each, and go on
evenly, so that a machine whose speed changes slows all of them alike.

merged_vs_per_turn      time of one update with one row per turn, each with its whole prompt, over that with merged rows
vs_bare                 tokens per second of the update over a bare transformers forward and backward with full logits
vs_bare_same_products   the same, with the bare loop's matrix products sent through oneDNN as the learner sends its own
peak_mb_ratio           peak memory above weights, gradients and optimiser state, gradient checkpointing on both sides, under
                        the learner's allocator, which here gives freed memory back at once: what the step needs
grad_rel_diff           largest over tensors of |a - b| / |b|, merged against per turn

    python -m benchmarks.learner [--trajectories 16]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TURNS, TOKENS, GROUP = 7, 2048, 8
SAMPLED = TOKENS // 4 // TURNS
OBSERVED = TOKENS // TURNS - SAMPLED
LEARNING_RATE = 1e-30
"""The step is made and moves nothing, so that both sides compute the gradients of the same weights."""
TURN = "turn"
"""What a side says that waits for its turn."""
ALONE = ("peak_ours", "peak_bare")
IN_TURNS = ("merged", "per_turn", "bare", "bare_onednn")


def rows_of(trajectories: int, per_turn: bool) -> list[Any]:
    """Training rows; with `per_turn` every turn is a trajectory's row of its own, with its whole prompt."""
    from rl_cluster.episodes.trajectory import Trajectory, Turn
    from rl_cluster.errors import Outcome
    from rl_cluster.sequences.extension import rows_from_trajectory, set_advantages

    rng = np.random.default_rng(0)
    rows: list[Any] = []
    prompt: list[int] = []
    for index in range(trajectories):
        if index % GROUP == 0:
            prompt = rng.integers(5, 40_000, OBSERVED).tolist()
        so_far, turns = prompt, []
        for _ in range(TURNS):
            sampled = rng.integers(5, 40_000, SAMPLED).tolist()
            turns.append(Turn(so_far, sampled, rng.normal(-10, 1, SAMPLED).tolist(), [0] * SAMPLED))
            so_far = [*so_far, *sampled, *rng.integers(5, 40_000, OBSERVED).tolist()]
        advantage = float(rng.normal())
        for part in [[turn] for turn in turns] if per_turn else [turns]:
            name = f"t{index}"
            made = rows_from_trajectory(Trajectory(name, name, f"g{index // GROUP}", part, Outcome.FINISHED)).rows
            set_advantages(made, {name: np.full(sum(row.num_trained for row in made), advantage)})
            rows += made
    return rows


def learner(micro_batch_tokens: int, checkpointing: bool, share_prefix: bool = True) -> Any:
    from rl_cluster.learning.rank import LearnerRank
    from rl_cluster.learning.settings import LearnerSettings, LoraSettings
    from rl_cluster.models.source import resolve_model

    settings = LearnerSettings(
        model_path=resolve_model("bundled:smollm2-135m-instruct"),
        learning_rate=LEARNING_RATE, schedule="constant", lr_warmup_steps=0, total_steps=1, adam_beta1=0.9, adam_beta2=0.95,
        adam_eps=1e-8, weight_decay=0.0, grad_clip_norm=1.0, zero_stage=0, micro_batch_tokens=micro_batch_tokens,
        share_prefix=share_prefix and not checkpointing, gradient_checkpointing=checkpointing, dtype="float32", device="cpu",
        temperature=1.0, lora=LoraSettings(), num_threads=2, seed=0, rendezvous_timeout_s=60.0,
    )  # fmt: skip
    rank = LearnerRank(settings, 0, 1, ("127.0.0.1", 0))
    rank.setup()
    return rank


def update_settings() -> Any:
    from rl_cluster.learning.settings import UpdateSettings

    return UpdateSettings("importance_sampling", 0.0, 1e9, None, "token_sum", 1)


class Turns:
    """Turns at the machine, which main() gives; `waited_s` is what waiting for them took."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def next(self, done: float) -> None:
        """Ends the present turn and waits for another; `done`: the part of the work that lies behind."""
        started = time.perf_counter()
        print(TURN, done, flush=True)
        sys.stdin.readline()
        self.waited_s += time.perf_counter() - started


def timed_update(trajectories: int, per_turn: bool, gradients: str) -> dict[str, float]:
    """See `measured_update`."""
    rank, rows = learner(2048, checkpointing=False, share_prefix=not per_turn), rows_of(trajectories, per_turn)
    record_log_probs(rank, rows, rows_of(trajectories, per_turn=False))
    return measured_update(rank, rows, gradients, Turns())


def measured_update(rank: Any, rows: list[Any], gradients: str, turns: Turns | None = None) -> dict[str, float]:
    """Seconds, row tokens and model positions of one update, after a short one; its gradients go to a file."""
    import torch

    rank.update(rows[:1], update_settings())
    step, learn, kept, done = rank._step, rank._pass, {}, 0
    total = sum(len(row) for row in rows)

    def learn_in_turn(inputs: Any, *arguments: Any, **named: Any) -> None:
        nonlocal done
        if turns is not None:
            turns.next(done / total)
        learn(inputs, *arguments, **named)
        done += len(inputs.prefix_ids) + inputs.suffix_ids.numel()

    def keep_gradients(loss: float) -> float:
        nonlocal kept
        kept = {name: p.grad.clone() for name, p in rank.engine.module.named_parameters() if p.grad is not None}
        return step(loss)

    rank._step, rank._pass = keep_gradients, learn_in_turn
    started = time.perf_counter()
    metrics = rank.update(rows, update_settings())
    seconds = time.perf_counter() - started - (turns.waited_s if turns is not None else 0.0)
    torch.save(kept, gradients)
    return {
        "seconds": seconds,
        "tokens": float(sum(len(row) for row in rows)),
        "positions": metrics["learner/positions"],
    }


def record_log_probs(rank: Any, rows: list[Any], merged: list[Any]) -> None:
    """Gives the sampled tokens of `rows` the model's own log-probs, as a sampler would have recorded them, from the merged rows."""
    import torch

    from rl_cluster.learning.policy import inputs_from_micro_batch
    from rl_cluster.sequences.batching import MicroBatch

    recorded: dict[str, np.ndarray] = {}
    with torch.no_grad():
        for row in merged:
            inputs = inputs_from_micro_batch(MicroBatch([row], 0), [np.ones(row.num_trained)], [0])
            recorded[row.trajectory_id] = rank.engine.module(inputs)[0].numpy()
    for row in rows:
        count = row.num_trained
        row.behaviour_logprobs[row.loss_mask] = recorded[row.trajectory_id][:count]
        recorded[row.trajectory_id] = recorded[row.trajectory_id][count:]


def bare_update(trajectories: int, onednn: bool) -> dict[str, float]:
    """Seconds of forward and backward over full logits, row by row, and the optimiser's step."""
    import torch

    from rl_cluster.models.cpu_matmul import use_onednn_for_float32

    if onednn:
        use_onednn_for_float32()
    model, optimizer = bare_model(checkpointing=False)
    rows = rows_of(trajectories, per_turn=False)
    bare_pass(model, rows[0])
    turns = Turns()
    started = time.perf_counter()
    for index, row in enumerate(rows):
        turns.next(index / len(rows))
        bare_pass(model, row)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    seconds = time.perf_counter() - started - turns.waited_s
    return {"seconds": seconds, "tokens": float(sum(len(row) for row in rows))}


def bare_model(checkpointing: bool) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    from rl_cluster.models.source import resolve_model

    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(resolve_model("bundled:smollm2-135m-instruct"), dtype=torch.float32)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)


def bare_pass(model: Any, row: Any) -> None:
    import torch

    ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
    logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, :-1], -1)
    picked = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
    mask = torch.from_numpy(row.loss_mask[1:].astype(np.float32))
    behaviour, advantage = (torch.from_numpy(values[1:]) for values in (row.behaviour_logprobs, row.advantages))
    ratio = torch.exp(torch.clamp(picked - behaviour, -20, 20))
    (-(ratio * advantage * mask).sum()).backward()


def measured_allocator() -> dict[str, str]:
    from actors.run_parts import process_environment

    variables = process_environment("cpu")["env_vars"]
    return {**variables, "MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0"}


def peak_memory(side: str) -> dict[str, float]:
    """MB of the step above weights, gradients and moments, which all stand when a second short update is about to step."""
    rows = rows_of(GROUP, per_turn=False)
    short = rows_of(1, per_turn=True)[0]
    standing = 0.0
    if side == "ours":
        rank = learner(2048, checkpointing=True)
        rank.update([short], update_settings())
        step = rank._step

        def measure(loss: float) -> float:
            nonlocal standing
            standing = resident_mb()
            return step(loss)

        rank._step = measure
        rank.update([short], update_settings())
        rank._step = step
        reset_peak()
        rank.update(rows[:1], update_settings())
    else:
        model, optimizer = bare_model(checkpointing=True)
        bare_pass(model, short)
        optimizer.step()
        bare_pass(model, short)
        standing = resident_mb()
        reset_peak()
        bare_pass(model, rows[0])
        optimizer.step()
    return {"peak_mb": peak_mb() - standing}


def resident_mb() -> float:
    return _status("VmRSS")


def peak_mb() -> float:
    return _status("VmHWM")


def reset_peak() -> None:
    """Linux starts the high-water mark anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name + ":"))


def largest_difference(first: str, second: str) -> float:
    """Largest over tensors of |a - b| / |b|."""
    import torch

    a, b = torch.load(first, weights_only=True), torch.load(second, weights_only=True)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).norm() / b[name].norm().clamp(min=1e-30)) for name in b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trajectories", type=int, default=16)
    parser.add_argument("--side", choices=[*IN_TURNS, *ALONE])
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(one_side(options.side, options.trajectories, options.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = {}
        for sides in (IN_TURNS, *((side,) for side in ALONE)):
            results |= results_of(sides, options.trajectories, folder)
        difference = largest_difference(f"{folder}/merged.pt", f"{folder}/per_turn.pt")
    merged = results["merged"]
    print(
        json.dumps(
            {
                "merged_vs_per_turn": round(results["per_turn"]["seconds"] / merged["seconds"], 2),
                "vs_bare": round(results["bare"]["seconds"] / merged["seconds"], 2),
                "vs_bare_same_products": round(results["bare_onednn"]["seconds"] / merged["seconds"], 2),
                "peak_mb_ratio": round(results["peak_ours"]["peak_mb"] / results["peak_bare"]["peak_mb"], 3),
                "grad_rel_diff": difference,
                "tokens_per_s": round(merged["tokens"] / merged["seconds"]),
            }
        )
    )


def results_of(sides: tuple[str, ...], trajectories: int, folder: str) -> dict[str, dict[str, float]]:
    """Runs the sides, never two at a time: each up to its first turn, and from then on the one that has done least."""
    results: dict[str, dict[str, float]] = {}
    processes: dict[str, subprocess.Popen[str]] = {}
    done: dict[str, float] = {}

    def go_on(side: str) -> None:
        found = until_next_turn(processes[side])
        if isinstance(found, dict):
            done.pop(side, None)
            results[side] = found
        else:
            done[side] = found

    for side in sides:
        command = [sys.executable, "-m", "benchmarks.learner", "--side", side, "--folder", folder]
        command += ["--trajectories", str(trajectories)]
        environment = os.environ | (measured_allocator() if side.startswith("peak") else {})
        processes[side] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        go_on(side)
    while done:
        side = min(done, key=lambda side: done[side])
        wake = processes[side].stdin
        assert wake is not None
        wake.write("\n")
        wake.flush()
        go_on(side)
    for side in sides:
        print(side, results[side], flush=True)
    return results


def until_next_turn(process: subprocess.Popen[str]) -> float | dict[str, float]:
    """What a side that waits for its turn has done of its work, or the result of one that has ended."""
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        word, _, done = line.partition(" ")
        if word == TURN:
            return float(done)
        last = line
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(last)


def one_side(side: str, trajectories: int, folder: str) -> dict[str, float]:
    if side in ("merged", "per_turn"):
        return timed_update(trajectories, side == "per_turn", f"{folder}/{side}.pt")
    if side in ("bare", "bare_onednn"):
        return bare_update(trajectories, side == "bare_onednn")
    return peak_memory(side.removeprefix("peak_"))


if __name__ == "__main__":
    main()
