"""`SystemMeter`: idle shares, queue lengths and step times between two marks.

Invariant: what happens between `mark` calls outside of steps (validation, checkpoints) belongs to no step: the
coordinator marks again after it.
"""

from __future__ import annotations

import time

from actors.learner import LearnerGroup
from actors.rollout_pool import RolloutPool


class SystemMeter:
    """Reads the counters of workers and learner; shares are fractions of the wall time since the last mark."""

    def __init__(self, pool: RolloutPool, learner: LearnerGroup) -> None:
        self.pool = pool
        self.learner = learner
        self._time = time.monotonic()
        self._worker_busy = self._learner_busy = 0.0

    async def mark(self) -> None:
        """Counts from here."""
        await self.pool.refresh()
        self._time = time.monotonic()
        self._worker_busy, self._learner_busy = self.pool.total("busy_s"), self.learner.busy_s

    async def step_metrics(self, training_started: float) -> dict[str, float]:
        """Metrics of the step that ends now, whose training began at `training_started` (monotonic); marks."""
        last, worker_busy, learner_busy = self._time, self._worker_busy, self._learner_busy
        await self.mark()
        elapsed = max(1e-6, self._time - last)
        workers = self.pool.workers
        worker_share = (self._worker_busy - worker_busy) / (elapsed * len(workers))
        return {
            "system/worker_idle": 1.0 - min(1.0, worker_share),
            "system/learner_idle": 1.0 - min(1.0, (self._learner_busy - learner_busy) / elapsed),
            "system/in_flight_episodes": float(self.pool.under_way),
            "system/mixed_cache_tokens": self.pool.total("mixed_cache_tokens"),
            "system/sync_pause_s": self.pool.total("pause_s"),
            "system/max_probe_gap": max((w.statistics.get("max_probe_gap", 0.0) for w in workers), default=0.0),
            "timing_s/step": elapsed,
            "timing_s/training": self._time - training_started,
        }
