"""Whether the learner's nodes share the run's folder, asked before anything is trained."""

from __future__ import annotations

import shutil
from pathlib import Path

from actors.learner import LearnerGroup
from rl_cluster.errors import CheckpointError

TIMEOUT_S = 120.0


async def check_shared_folder(learner: LearnerGroup, output: Path, all_ranks_write: bool) -> None:
    """Raises CheckpointError that names the ranks whose files do not arrive; without `all_ranks_write` the first rank counts."""
    folder = output / ".shared"
    await learner.call("leave_mark", TIMEOUT_S, str(folder))
    writing = range(len(learner.ranks) if all_ranks_write else 1)
    missing = [rank for rank in writing if not (folder / f"rank-{rank}").exists()]
    shutil.rmtree(folder, ignore_errors=True)
    if missing:
        raise CheckpointError(
            f"output_dir={output} is not shared with the nodes of learner ranks {missing}, whose parts of checkpoints would be lost; set "
            "output_dir to a folder that all nodes share."
        )
