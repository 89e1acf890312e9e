"""`RolloutWorker`: one vLLM engine and the many episodes that share it.

Invariants: the process imports no retrieval library; the worker owns its engine's pauses and updates and pulls the
newest weights by itself; an episode that fails by infrastructure is tried again, and after the last try it is handed
back with its typed outcome and without a reward; a worker whose engine is broken ends itself so that it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from actors.remote import Handle, actor, ask, within
from actors.search_client import SearchAccess, open_search
from actors.weight_sync import Publication, local_snapshot
from rl_cluster.datasets.task import Task
from rl_cluster.environments.search import SearchEnvironment, SearchEnvironmentSettings
from rl_cluster.episodes.episode import EpisodeLimits, EpisodeParts, run_episode
from rl_cluster.episodes.formats import detect_format, get_format
from rl_cluster.episodes.rendering import ChatRenderer
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import EngineError, Outcome, SupersededError, WeightSyncError
from rl_cluster.inference.engine import Deliver, EngineSettings, InferenceEngine
from rl_cluster.rewards import get_reward


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker needs besides its engine's settings. `index_ids`: content ids by corpus. Times are seconds."""

    engine: EngineSettings
    environment: SearchEnvironmentSettings
    tool_format: str
    reward: str
    index_ids: dict[str, str]
    search: SearchAccess
    rollout_timeout: float
    rollout_max_retries: int
    sync_folder: str
    sync_timeout_s: float
    start_timeout_s: float


RETRY_PAUSE_S = 1.0
TRANSFER_GROUP = "transfer"
"""The concurrency group of the learner that sends weights beside training."""


@actor(max_concurrency=1000, max_restarts=0)
class RolloutWorker:
    """Created by the coordinator, then `start`ed; it serves until it is killed."""

    def __init__(self, worker_id: str, settings: WorkerSettings, sync: Handle) -> None:
        self.worker_id = worker_id
        self.settings = settings
        self.sync = sync
        self.sequence = 0
        self.engine: InferenceEngine | None = None
        self.sync_task: asyncio.Task[None] | None = None
        self.started_at = time.monotonic()

    async def start(self) -> str:
        """Starts the engine and the pull of weights; returns the tool format in use."""
        from transformers import AutoTokenizer

        settings = self.settings
        tokenizer = AutoTokenizer.from_pretrained(settings.engine.model_path, trust_remote_code=False)
        name = settings.tool_format
        name = detect_format(tokenizer.chat_template or "") if name == "auto" else name
        self.tool_format = get_format(name)
        self.renderer = ChatRenderer(tokenizer, self.tool_format.observation_role, self.tool_format.uses_template_tools)
        self.clients = open_search(settings.search)
        self.engine = await InferenceEngine.start(settings.engine, settings.start_timeout_s)
        self.parts = EpisodeParts(
            sampler=self.engine.sample,
            renderer=self.renderer,
            tool_format=self.tool_format,
            reward=get_reward(settings.reward),
            worker=self.worker_id,
        )
        await ask("The weight sync", self.sync.register.remote(self.worker_id))
        self.started_at = time.monotonic()
        return name

    async def follow_weights(self) -> None:
        """Pulls every newer publication until the worker ends; raises WeightSyncError when an update fails."""
        while True:
            waiting = self.sync.wait_newer.remote(self.worker_id, self.sequence, 10.0)
            publication = await ask("The weight sync", waiting)
            if publication is not None:
                # Nothing was touched then, and a newer publication waits.
                with contextlib.suppress(SupersededError):
                    await self.apply(publication)

    async def apply(self, publication: Publication) -> None:
        """Loads one publication and acknowledges it. Raises SupersededError when it gave way to a newer one."""
        deliver = self._read(publication) if publication.sender is None else self._fetch(publication)
        await self._engine().update(publication.weights, deliver, self.settings.sync_timeout_s)
        self.sequence = publication.sequence
        await ask("The weight sync", self.sync.acknowledge.remote(self.worker_id, publication.sequence))

    def _read(self, publication: Publication) -> Deliver:
        async def deliver() -> None:
            settings, weights = self.settings, publication.weights
            path = await local_snapshot(
                self.sync,
                publication,
                settings.engine.transport,
                Path(settings.sync_folder),
                ray.get_runtime_context().get_node_id(),
            )
            try:
                await self._engine().deliver_file(weights, str(path))
            finally:
                if str(path) != weights.path:
                    path.unlink(missing_ok=True)

        return deliver

    def _fetch(self, publication: Publication) -> Deliver:
        async def deliver() -> None:
            context = ray.get_runtime_context()
            send: Any = publication.sender.send_weights.options(concurrency_group=TRANSFER_GROUP)  # type: ignore[union-attr]
            await send.remote(
                f"{self.worker_id}:{context.get_actor_id()}",
                context.current_actor,
                self.settings.engine.tensor_parallel_size,
                publication.sequence,
                publication.weights.version,
                self.settings.sync_timeout_s,
            )

        return deliver

    async def transfer(self, step: str, payload: Any) -> None:
        """One step of a weight transfer that the learner drives."""
        await self._engine().transfer(step, payload)

    async def run_group(self, group_id: str, task: Task, num_episodes: int, limits: EpisodeLimits) -> list[Trajectory]:
        """Plays `num_episodes` episodes of one task at once; infrastructure failures come back typed after all tries.

        Raises EngineError when the engine is broken, since then this worker must be replaced.
        """
        episodes = [self._episode(group_id, task, limits) for _ in range(num_episodes)]
        trajectories = list(await asyncio.gather(*episodes))
        if self._engine().broken:
            raise EngineError(f"Worker {self.worker_id}: {self._engine().broken}")
        return trajectories

    async def _episode(self, group_id: str, task: Task, limits: EpisodeLimits) -> Trajectory:
        settings = self.settings
        client = self.clients.over(task.corpus)
        index_id = settings.index_ids[task.corpus]
        attempt = 0
        while True:
            environment = SearchEnvironment(task, settings.environment, self.tool_format, client)
            started = time.time()
            try:
                trajectory = await within(
                    settings.rollout_timeout,
                    run_episode(self.parts, task, environment, limits, group_id, attempt, index_id),
                )
            except TimeoutError:
                trajectory = Trajectory(
                    trajectory_id=os.urandom(16).hex(),
                    task_id=task.task_id,
                    group_id=group_id,
                    turns=[],
                    outcome=Outcome.CANCELLED,
                    attempt=attempt,
                    index_id=index_id,
                    worker=self.worker_id,
                    started_at=started,
                    finished_at=time.time(),
                    error=f"the episode passed rollout.rollout_timeout={settings.rollout_timeout:.0f} s",
                )
            retry = trajectory.outcome.is_infrastructure_failure and attempt < settings.rollout_max_retries
            if not retry or self._engine().broken:
                return trajectory
            attempt += 1
            await asyncio.sleep(RETRY_PAUSE_S * attempt)

    async def statistics(self) -> dict[str, float]:
        """Totals since the start; seconds where the name ends in _s."""
        engine = self._engine()
        counters = engine.counters
        return {
            "busy_s": engine.busy_seconds(),
            "alive_s": time.monotonic() - self.started_at,
            "sampled_tokens": float(counters.sampled_tokens),
            "requests": float(counters.requests),
            "mixed_cache_tokens": float(counters.mixed_cache_tokens),
            "updates": float(counters.updates),
            "pause_s": counters.pause_s,
            "max_probe_gap": counters.max_probe_gap,
            "version": float(engine.version),
        }

    async def close(self) -> None:
        """Ends the engine's processes."""
        if self.engine is not None:
            await self.engine.close()

    def _engine(self) -> InferenceEngine:
        if self.engine is None:
            raise WeightSyncError(f"Worker {self.worker_id} has not been started; call start() first.")
        return self.engine
