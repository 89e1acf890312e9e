"""Playing a set of questions once each over all workers, for evaluation and validation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from actors.rollout_pool import RolloutPool
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.episode import EpisodeLimits
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.records import record_of
from rl_cluster.evaluation.summary import EpisodeRecord

PROGRESS_EVERY_S = 20.0


async def play_once(
    pool: RolloutPool, tasks: Sequence[Task], limits: EpisodeLimits, on_progress: Callable[[int], None]
) -> tuple[list[EpisodeRecord], list[Trajectory]]:
    """One episode per task; records and trajectories in the order of `tasks`. `on_progress`: takes how many are done, now and then."""
    done, said = 0, time.monotonic()

    async def play(task: Task) -> Trajectory:
        nonlocal done, said
        group = await pool.run_group(f"evaluation:{task.task_id}", task, 1, limits)
        done += 1
        if done < len(tasks) and time.monotonic() - said >= PROGRESS_EVERY_S:
            said = time.monotonic()
            on_progress(done)
        return group[0]

    trajectories = list(await asyncio.gather(*(play(task) for task in tasks)))
    records = [record_of(t, task) for t, task in zip(trajectories, tasks, strict=True)]
    return records, trajectories
