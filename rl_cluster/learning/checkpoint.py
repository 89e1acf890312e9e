"""Checkpoint folders: written beside, renamed when whole, so that a crash while saving leaves the last one usable.

A folder `step_000010` holds `learner/` (weights, optimiser, random states of all ranks) and `run.json` (ledger, counters,
history). `run.json` is written last; a folder without it is no checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rl_cluster.errors import CheckpointError
from rl_cluster.learning.whole_folder import discard, former_folders, put_in_place, recover

STATE = "run.json"
"""What makes a folder a checkpoint."""
_PROGRESS = "last_step"


def checkpoint_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of a step stands when it is whole."""
    return root / f"step_{step:06d}"


def partial_folder(root: Path, step: int) -> Path:
    """Where it is written; what an earlier crash left there is removed."""
    folder = root / f".step_{step:06d}.partial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def commit_checkpoint(
    root: Path, step: int, state: dict[str, Any], keep: int, protect: tuple[int, ...] = (), optimizer_parts: int = 0
) -> Path:
    """Adds the run's state to the partial folder, gives it its name, and removes all but the newest `keep`.

    `optimizer_parts`: how many ranks write a part of the optimiser's state of their own. Raises CheckpointError where a part is
    missing.
    """
    partial, final = root / f".step_{step:06d}.partial", checkpoint_folder(root, step)
    learner = partial / "learner"
    parts = len(list(learner.glob("*optim_states.pt")))
    if not any(learner.glob("*.pt")) or parts < optimizer_parts:
        raise CheckpointError(
            f"{partial} holds {parts} of {optimizer_parts} parts of the optimiser and {len(list(learner.glob('*.pt')))} files of the learner "
            "in all: a learner's node does not share this folder; set output_dir to one that all share."
        )
    with open(partial / STATE, "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(partial, final)
    steps = [s for s in checkpoint_steps(root) if s not in protect]
    for old in steps[:-keep]:
        discard(checkpoint_folder(root, old))
    return final


def note_progress(root: Path, step: int) -> None:
    """Notes the last completed step, so that a resumed run can say which steps a crash undid."""
    root.mkdir(parents=True, exist_ok=True)
    beside = root / f".{_PROGRESS}"
    beside.write_text(str(step))
    beside.replace(root / _PROGRESS)


def last_progress(root: Path) -> int:
    """The step that `note_progress` noted last; 0 where there is none."""
    path = root / _PROGRESS
    return int(path.read_text()) if path.exists() else 0


def checkpoint_steps(root: Path) -> list[int]:
    """Steps of all whole checkpoints, ascending, one included that was being replaced when a process ended."""
    for folder in former_folders(root, "step_*"):
        recover(folder)
    return sorted(int(path.parent.name.removeprefix("step_")) for path in root.glob(f"step_*/{STATE}"))


def read_state(folder: Path) -> dict[str, Any]:
    """The run's state of a checkpoint; CheckpointError when it cannot be read."""
    try:
        return json.loads((folder / STATE).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder / STATE} cannot be read ({error}); remove {folder} to resume from the one before."
        ) from error
