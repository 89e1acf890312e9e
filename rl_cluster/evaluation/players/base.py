"""What the evaluation asks of a system."""

from __future__ import annotations

from typing import Protocol

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.formats.base import ToolFormat
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.world import World


class Player(Protocol):
    """`concurrency`: how many episodes may be under way; 1 where latency would otherwise measure the waiting.

    `tool_format`: how it is told of tools and writes calls; None for a system without any.
    """

    concurrency: int

    @property
    def tool_format(self) -> ToolFormat | None: ...

    async def play(self, world: World, task: Task, sample: int) -> Trajectory:
        """Plays the episode number `sample` of a task to its end; failures of engine or search come back as typed outcomes."""
        ...
