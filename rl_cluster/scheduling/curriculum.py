"""`Curriculum`: which task to play next, by how often the policy solves it.

A task whose episodes all score alike teaches a group-based advantage nothing. Each task keeps an estimate of its mean
score and of the variance among its episodes; tasks solved sometimes are preferred, and among them the harder ones. Unknown
tasks count as solved half of the time. Every task keeps a floor, so that none is forgotten and a task that became solvable is found again.
A score is judged beside the lowest and the highest that were seen, 0 included, since a reward of one's own need not lie
between 0 and 1; one that is now and then a thousand times as large makes all other tasks look alike, and wants a bound.

Invariants: a choice depends on the seed, on how many choices came before and on the observed scores alone; a curriculum
that is saved and loaded chooses as the saved one would have.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_cluster.errors import CheckpointError


@dataclass(frozen=True)
class CurriculumSettings:
    """memory in [0, 1): how much of the old estimate a new observation leaves; floor in (0, 1]: weight of any task."""

    memory: float = 0.5
    floor: float = 0.05


class Curriculum:
    """Weighted choice without replacement among the tasks that may start."""

    def __init__(self, seed: int, settings: CurriculumSettings | None = None) -> None:
        self.settings = settings or CurriculumSettings()
        self._seed = seed
        self._choices = 0
        self._scores: dict[str, tuple[float, float]] = {}
        self._lowest = self._highest = 0.0

    def observe(self, task_id: str, scores: Sequence[float | None]) -> None:
        """The scores of a finished group's episodes; None for a failed one, which counts as the lowest score seen, or 0."""
        if not scores:
            return
        given = [score for score in scores if score is not None]
        self._lowest, self._highest = min([self._lowest, *given]), max([self._highest, *given])
        counted = [self._lowest if score is None else score for score in scores]
        mean = sum(counted) / len(counted)
        variance = sum((score - mean) ** 2 for score in counted) / max(1, len(counted) - 1)
        old_mean, old_variance = self._scores.get(task_id, (mean, variance))
        memory = self.settings.memory
        self._scores[task_id] = (
            memory * old_mean + (1 - memory) * mean,
            memory * old_variance + (1 - memory) * variance,
        )

    def weight(self, task_id: str) -> float:
        """floor + (1 - floor) * min(1, 4 v) * (1 - p / 2), with p the estimated mean of the task's scores and v that of their
        variance (ddof 1; p (1 - p) where a score is 0 or 1), of scores on the scale from the lowest (0) to the highest (1) seen;
        p = 1/2 and v = 1/4 when the task is unknown.
        """
        p, v = 0.5, 0.25
        if task_id in self._scores:
            mean, variance = self._scores[task_id]
            unit = (self._highest - self._lowest) or 1.0
            p, v = (mean - self._lowest) / unit, variance / unit**2
        return self.settings.floor + (1 - self.settings.floor) * min(1.0, 4 * v) * (1 - p / 2)

    def choose(self, candidates: Sequence[str], count: int) -> list[str]:
        """Up to `count` different tasks, each drawn with a probability in proportion to its weight."""
        rng = random.Random(f"{self._seed}:{self._choices}")
        self._choices += 1
        # The largest keys u^(1/w) are a weighted sample without replacement (Efraimidis and Spirakis, 2006).
        keyed = [(rng.random() ** (1.0 / self.weight(task_id)), task_id) for task_id in sorted(candidates)]
        return [task_id for _, task_id in sorted(keyed, reverse=True)[:count]]

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, of JSON types alone."""
        scores = {task_id: list(both) for task_id, both in self._scores.items()}
        return {"choices": self._choices, "scores": scores, "lowest": self._lowest, "highest": self._highest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the saved curriculum stood. Raises CheckpointError for a malformed state."""
        try:
            choices, lowest, highest = int(state["choices"]), float(state["lowest"]), float(state["highest"])
            scores = {str(task_id): (float(mean), float(var)) for task_id, (mean, var) in state["scores"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"The saved curriculum is malformed ({error!r}); remove the newest checkpoint to resume from the one before."
            ) from error
        self._choices, self._scores = choices, scores
        self._lowest, self._highest = lowest, highest
