"""The command line of a job with a tiny model on small tables, its actors, and what it tracked."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.ports import SEARCH_PORT

LONG_PROMPTS = ["rollout.max_sequence_length=2048", "learner.micro_batch_tokens=2048"]
"""For templates that describe the tools as JSON."""
WORDS_ALONE = "environment.tools=[bm25_search]"
"""Without an embedder in the search service, which takes longer to start than the rest of it."""
ACTORS = ("RolloutWorker", "Learner", "WeightSync", "TrajectoryBuffer")


def job_overrides(output: Path, model: Path, tables: Path, *overrides: str) -> list[str]:
    """Overrides of a job that makes a step in seconds; later ones win."""
    return [
        f"output_dir={output}",
        f"run_name={output.name}",
        "model=hugging_face",
        f"model.name={model}",
        "model.dtype=float32",
        "data=tables",
        f"data.folder={tables}",
        f"search.port={SEARCH_PORT}",
        "rollout.yield_to_learner=false",  # the tests of another process may be busy all the time
        "learner.num_threads=1",
        "rollout.cpu_threads=1",
        "rollout.kv_cache_gib=0.125",
        "rollout.sampling_max_tokens=24",
        "warmup.steps=1",
        "warmup.batch_size=2",
        "warmup.demonstrations=4",
        "training.global_batch_size=2",
        "training.group_size=2",
        "training.max_epochs=2",
        "training.val_every=0",
        "training.val_at_start=false",
        "training.save_every=1",
        "evaluation.test_limit=2",
        "evaluation.temperatures=[1.0]",
        *overrides,
    ]


def tracked_client(folder: Path) -> Any:
    """Of the database in `folder`."""
    import mlflow

    return mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")


def tracked_runs(folder: Path) -> list[Any]:
    """The runs of the database in `folder`, the oldest first."""
    client = tracked_client(folder)
    experiment: Any = client.get_experiment_by_name("rl_cluster")
    return list(client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"]))


def actor_processes(name: str) -> list[psutil.Process]:
    """Processes that hold an actor of this class on a cluster that this process started; Ray names them after it."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if command and command[0].startswith(f"ray::{name}"):
                found.append(process)
    return found
