"""Folders of saved models (`start`, `best`, `final`): written beside, renamed when whole, so that a crash leaves the last one usable.

`validation.json` in a folder says at which step and with which score its weights were validated.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from rl_cluster.errors import CheckpointError
from rl_cluster.learning.whole_folder import put_in_place, recover

_VALIDATION = "validation.json"


def begin_model(output: Path, name: str) -> Path:
    """Where a model is written; what an earlier crash left there is removed."""
    folder = output / f".{name}.partial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def commit_model(output: Path, name: str, validation: dict[str, Any] | None = None) -> Path:
    """Gives a written model its name in place of the one before. Raises CheckpointError where there are no weights."""
    partial, final = output / f".{name}.partial", output / name
    if not any(partial.glob("*.safetensors")):
        raise CheckpointError(
            f"{partial} holds no weights: the learner's node does not share this folder; set output_dir to one that it shares."
        )
    if validation is not None:
        (partial / _VALIDATION).write_text(json.dumps(validation))
    put_in_place(partial, final)
    return final


def validation_of(output: Path, name: str) -> dict[str, Any]:
    """`step`, `ndcg@10`, `ci95` and `n` of a saved model; empty where there is none. One that was being replaced when a process ended counts."""
    recover(output / name)
    path = output / name / _VALIDATION
    return json.loads(path.read_text()) if path.exists() else {}
