"""The command line of a job with a tiny model on small tables, and what it tracked."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
        "search.port=8399",
        "learner.num_threads=1",
        "rollout.cpu_threads=1",
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
