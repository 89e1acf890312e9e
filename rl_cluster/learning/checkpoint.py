"""Checkpoint folders: written beside, renamed when whole, so that a crash while saving leaves the last one usable.

A folder `step_000010` holds `learner/` (weights, optimiser, random states of all ranks) and `run.json` (a `RunState`).
`run.json` is written last; a folder without it is no checkpoint.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rl_cluster.errors import CheckpointError
from rl_cluster.learning.whole_folder import discard, former_folders, put_in_place, recover

STATE = "run.json"
"""What makes a folder a checkpoint."""
TASKS = "the tasks"
"""Under which name `RunState.data` holds their digest."""
_PROGRESS = "last_step"


class RunState(msgspec.Struct, frozen=True):
    """What a run knows at a checkpoint besides its learner."""

    completed_steps: int
    queue: dict[str, Any]
    """See TaskQueue.state_dict."""
    history: list[dict[str, Any]]
    """The metrics of every step."""
    rl_seconds: float
    """Wall time of reinforcement learning so far."""
    config: dict[str, Any]
    data: dict[str, str]
    """What was trained on: a name for people, and a digest of its content or a content id."""


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
    root: Path, step: int, state: RunState, keep: int, protect: tuple[int, ...] = (), optimizer_parts: int = 0
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
    (partial / STATE).write_text(json.dumps(msgspec.structs.asdict(state)))
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


def last_checkpoint(root: Path) -> Path | None:
    """The folder of the newest whole checkpoint."""
    steps = checkpoint_steps(root)
    return checkpoint_folder(root, steps[-1]) if steps else None


def read_state(folder: Path) -> RunState:
    """The run's state of a checkpoint; CheckpointError when it cannot be read."""
    try:
        # Read by `json`, since metrics may be NaN.
        return msgspec.convert(json.loads((folder / STATE).read_text()), RunState)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{folder / STATE} is that of no run of this version ({error}); go on with the version that wrote it, or choose another "
            "run_name or output_dir."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{folder / STATE} cannot be read ({error}); remove {folder} to resume from the one before."
        ) from error


def check_learner_files(folder: Path) -> None:
    """Raises CheckpointError where the learner's files of a checkpoint are missing, cut or not readable."""
    files = sorted((folder / "learner").glob("*.pt"))
    if not files:
        raise CheckpointError(
            f"{folder}/learner holds no learner state; remove {folder} to resume from the one before."
        )
    # Archives that end with their table of contents, so that a cut one has none.
    damaged = next((path for path in files if not zipfile.is_zipfile(path)), None)
    if damaged is not None:
        raise CheckpointError(f"{damaged} is cut or cannot be read; remove {folder} to resume from the one before.")


def check_same_data(folder: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises CheckpointError where a job's data (see RunState.data), as far as it knows them, are not those of the checkpoint in `folder`."""
    for name, identity in now.items():
        if before.get(name) != identity:
            raise CheckpointError(
                f"{folder} was made on other data ({name}: {before.get(name, 'none')[:12]} then, {identity[:12]} now); put back the data, and "
                "for an index the versions of what makes it, or choose another run_name or output_dir."
            )
