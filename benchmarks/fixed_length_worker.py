"""A rollout worker for measurements: single-turn groups of an exact length, rewarded at random."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from functools import partial

from actors.remote import Handle, actor
from rl_cluster.episodes.sampling import SamplingSettings
from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.inference.engine import EngineSettings, InferenceEngine

NAME = "benchmark"


@actor(max_concurrency=100)
class FixedLengthWorker:
    """The engine and its weight updates are those of the real worker; only the episode is simpler."""

    def __init__(self, model_path: str, max_model_len: int, max_num_seqs: int, sync: Handle) -> None:
        self.settings = EngineSettings(model_path, max_model_len, max_num_seqs=max_num_seqs, yields=True)
        self.sync = sync
        self.sequence = 0
        self.rewards = random.Random(0)

    async def start(self) -> None:
        self.engine = await InferenceEngine.start(self.settings)
        await self.sync.register.remote(NAME)
        self.following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            publication = await self.sync.wait_newer.remote(NAME, self.sequence, 10.0)
            if publication is not None:
                weights = publication.weights  # its file is on this host
                await self.engine.update(weights, partial(self.engine.deliver_file, weights, weights.path))
                self.sequence = publication.sequence
                await self.sync.acknowledge.remote(NAME, self.sequence)

    async def run_group(self, group_id: str, prompt_ids: list[int], size: int, new_tokens: int) -> list[Trajectory]:
        """`size` samples of exactly `new_tokens` tokens."""
        sampling = SamplingSettings(1.0, 1.0, new_tokens, (), ignore_eos=True)
        samples = await asyncio.gather(*(self.engine.sample(prompt_ids, sampling) for _ in range(size)))
        if self.following.done():
            self.following.result()
        group = []
        for sample in samples:
            turn = Turn(prompt_ids, sample.token_ids, sample.logprobs, sample.weight_versions)
            episode = Trajectory(uuid.uuid4().hex, group_id, group_id, [turn], Outcome.FINISHED)
            episode.reward = self.rewards.random()
            group.append(episode)
        return group

    async def statistics(self) -> dict[str, float]:
        return {"busy_s": self.engine.busy_seconds(), "time": time.monotonic()}
