"""Trajectories per second of the asynchronous loop against TRL's GRPOTrainer, side by side on one machine.

Both train the bundled model on the same prompts with the same group size and exactly the same numbers of prompt and new
tokens: `python -m benchmarks.main_job --steps 4`. Ours runs the real parts: a vLLM engine in a rollout worker process, a
DeepSpeed learner, weight sync with digests and probe after every step, the staleness policy. Rewards are drawn at random
(seeded), so that every group has a gradient. TRL gets an environment of its own, made on the first run. The first step of
each side is a warm-up and is not counted. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rl_cluster.models.source import bundled_policy, cache_root

TRL_VERSION = "1.16.0"
PACKAGES = ["transformers==5.19.0", "accelerate==1.15.0", "torch==2.13.0"]
HERE = Path(__file__).resolve().parent


def prompts(count: int, tokens: int) -> tuple[list[str], list[list[int]]]:
    """`count` different prompts of random words, as texts and as exactly `tokens` ids each: TRL is given texts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(bundled_policy()))
    words = [i for i in range(1000, 20000) if tokenizer.encode(tokenizer.decode([i]), add_special_tokens=False) == [i]]
    words = [i for i in words if tokenizer.decode([i]).startswith(" ") and tokenizer.decode([i]).strip().isalpha()]
    numbers = random.Random(0)
    texts = [tokenizer.decode([numbers.choice(words) for _ in range(tokens)]) for _ in range(count)]
    return texts, [tokenizer.encode(text, add_special_tokens=False) for text in texts]


async def measure_ours(arguments: argparse.Namespace) -> dict[str, float]:
    """Runs the asynchronous loop for the given steps; see the module docstring."""
    import ray

    from actors.learner import LearnerGroup
    from actors.run_parts import learner_options, learner_settings, update_settings, worker_options
    from actors.weight_sync import WeightSync
    from benchmarks.fixed_length_worker import FixedLengthWorker
    from rl_cluster.algorithms.types import AdvantageSettings
    from rl_cluster.composition import load_config
    from rl_cluster.learning.batch import build_step_batch
    from rl_cluster.scheduling.staleness import StalenessPolicy

    config = load_config([f"learner.share_prefix={str(arguments.share_prompt).lower()}", "output_dir=/tmp/unused"])
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=500 << 20)
    groups_per_step = arguments.trajectories // arguments.group_size
    policy = StalenessPolicy(arguments.max_steps_off_policy, groups_per_step)
    model = str(bundled_policy())
    learner = await LearnerGroup.start(learner_settings(config, model), 1, learner_options(config), 300)
    sync = WeightSync.remote()
    probe = prompts(1, 32)[1][0]
    worker: Any = FixedLengthWorker.options(**worker_options(config)).remote(
        model, arguments.prompt_tokens + arguments.new_tokens + 8, arguments.trajectories * 2, sync
    )
    await worker.start.remote()
    # Enough to keep generating until the clock stops: it starts with some of the next step's groups generated as well.
    total = (arguments.steps + 2 + arguments.max_steps_off_policy) * groups_per_step
    pending = {str(i): ids for i, ids in enumerate(prompts(total, arguments.prompt_tokens)[1])}
    completed, sequence, learner_busy, max_age, started = 0, 0, 0.0, 0, 0.0
    running: dict[asyncio.Future[Any], str] = {}
    finished: dict[str, Any] = {}
    marks: dict[str, float] = {}
    while completed < arguments.steps + 1:
        if completed == 1 and not marks:
            marks = await worker.statistics.remote()
            started, learner_busy = time.monotonic(), learner.busy_s
        allowed = policy.admissible(completed, len(running) + len(finished), None)
        for group_id in list(pending)[: max(0, allowed)]:
            call = worker.run_group.remote(group_id, pending.pop(group_id), arguments.group_size, arguments.new_tokens)
            running[asyncio.ensure_future(_value(call))] = group_id
        if len(finished) < groups_per_step:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=600)
            for task in done:
                finished[running.pop(task)] = task.result()
            continue
        chosen = {key: finished.pop(key) for key in list(finished)[:groups_per_step]}
        batch = build_step_batch(chosen, "group_based", AdvantageSettings(), completed)
        max_age = max(max_age, int(batch.metrics["staleness/age_max"]))
        await learner.update(batch.rows, update_settings(config), 1800)
        completed += 1
        sequence += 1
        path = f"/dev/shm/rl_cluster/benchmark-{os.getpid()}-{sequence}.safetensors"
        await sync.publish.remote(await learner.publish(path, probe, 120))
    wall = time.monotonic() - started
    now = await worker.statistics.remote()
    await sync.close.remote()
    ray.shutdown()
    return {
        "steps": float(arguments.steps),
        "wall_s": wall,
        "trajectories_per_s": arguments.steps * arguments.trajectories / wall,
        "worker_idle": 1.0 - min(1.0, (now["busy_s"] - marks["busy_s"]) / wall),
        "learner_idle": 1.0 - min(1.0, (learner.busy_s - learner_busy) / wall),
        "max_age": float(max_age),
    }


async def _value(reference: Any) -> Any:
    return await reference


def trl_python() -> Path:
    """The interpreter of TRL's own environment; made on first use."""
    folder = cache_root() / f"trl-{TRL_VERSION}"
    python = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        uv = Path(sys.executable).parent / "uv"
        links = os.environ.get("PIP_FIND_LINKS", "")
        local = links and any(Path(links).glob("torch-*cpu*.whl"))
        backend = [] if local else ["--torch-backend", "cpu"]
        subprocess.run([uv, "venv", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run(
            [uv, "pip", "install", "--python", python, *backend, f"trl=={TRL_VERSION}", *PACKAGES],
            check=True,
            env={**os.environ, "UV_FIND_LINKS": links},
        )
        (folder / ".complete").touch()
    return python


def measure_trl(arguments: argparse.Namespace) -> float:
    """TRL's trajectories per second, first step not counted."""
    command = [str(trl_python()), str(HERE / "trl_baseline.py"), "--model", str(bundled_policy())]
    for name in ("steps", "trajectories", "group_size", "new_tokens"):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    count = (arguments.steps + 1) * arguments.trajectories // arguments.group_size
    texts = json.dumps(prompts(count, arguments.prompt_tokens)[0])
    run: dict[str, Any] = {"check": True, "stdout": subprocess.PIPE, "text": True, "timeout": 3600}
    output = subprocess.run(command, input=texts, env=environment, **run).stdout
    return float(json.loads(output.strip().splitlines()[-1])["trajectories_per_s"])


def main() -> None:
    """Measures both sides and prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="counted training steps of each side")
    parser.add_argument("--trajectories", type=int, default=16, help="trajectories a step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=400)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--max-steps-off-policy", type=int, default=1)
    parser.add_argument("--share-prompt", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--trl", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    trl = measure_trl(arguments) if arguments.trl else float("nan")
    print(f"TRL: {trl:.4f} trajectories/s", flush=True)
    ours = asyncio.run(measure_ours(arguments))
    result = {
        **{name: round(value, 4) for name, value in ours.items()},
        "trl_trajectories_per_s": round(trl, 4),
        "ratio": round(ours["trajectories_per_s"] / trl, 3),
        "share_prompt": arguments.share_prompt,
        "cores": os.cpu_count(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
