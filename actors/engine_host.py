"""`EngineHost`: one vLLM engine that samples for whoever has its handle; episodes are played there, not here."""

from __future__ import annotations

from actors.remote import actor
from rl_cluster.episodes.sampling import Sample, SamplingSettings
from rl_cluster.errors import EngineError
from rl_cluster.inference.engine import EngineSettings, InferenceEngine


@actor(max_concurrency=1000, max_restarts=0)
class EngineHost:
    """`start` it before it samples; the process imports no retrieval library."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.engine: InferenceEngine | None = None

    async def start(self, deadline_s: float) -> None:
        """Raises EngineError or DeadlineError."""
        self.engine = await InferenceEngine.start(self.settings, deadline_s)

    async def sample(self, prompt_ids: list[int], sampling: SamplingSettings) -> Sample:
        if self.engine is None:
            raise EngineError(f"The engine of {self.settings.model_path} has not been started; call start() first.")
        return await self.engine.sample(prompt_ids, sampling)

    async def close(self) -> None:
        """Ends the engine's processes."""
        if self.engine is not None:
            await self.engine.close()
