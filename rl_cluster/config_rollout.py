"""The settings of rollout workers and of the machines that they run on; imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rl_cluster.config_types import LEAST_TEMPERATURE, NonNegative, Positive, Seconds, Section


class RolloutConfig(Section):
    num_workers: Positive
    rollout_max_concurrency: Positive
    rollout_timeout: Seconds
    rollout_max_retries: NonNegative
    sampling_max_tokens: Positive
    max_sequence_length: Positive
    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE, le=2)]
    sampling_top_p: Annotated[float, Field(gt=0, le=1)]
    kv_cache_gib: Annotated[float, Field(gt=0)] | None
    cpus_per_worker: Annotated[float, Field(ge=0)]
    gpus_per_worker: Annotated[float, Field(ge=0)]
    tensor_parallel_size: Positive
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] | None
    enforce_eager: bool
    cpu_threads: Positive
    yield_to_learner: bool
    start_timeout_s: Seconds
    max_restarts: NonNegative

    @model_validator(mode="after")
    def _gpu_for_each_part(self) -> RolloutConfig:
        if self.gpus_per_worker and self.tensor_parallel_size > max(1.0, self.gpus_per_worker):
            raise ValueError(
                f"tensor_parallel_size={self.tensor_parallel_size} is over gpus_per_worker={self.gpus_per_worker:g}, but each part of a "
                "model that is cut needs a GPU of its own; raise gpus_per_worker or lower tensor_parallel_size"
            )
        return self


class ClusterConfig(Section):
    name: str
    device: Literal["cpu", "cuda"]
    address_timeout_s: Seconds
    object_store_gib: Annotated[float, Field(gt=0)] | None


def check_memory(rollout: RolloutConfig, cluster: ClusterConfig) -> None:
    """Raises ValueError where an engine would have another cache than the one asked for: each device has a setting of its own."""
    settings = {"cpu": "kv_cache_gib", "cuda": "gpu_memory_utilization"}
    for device, name in settings.items():
        value, group = getattr(rollout, name), "cpu" if cluster.device == "cpu" else "gpu"
        if (value is None) == (device == cluster.device):
            raise ValueError(
                f"rollout.{name}={'null' if value is None else format(value, 'g')} does not fit cluster.device={cluster.device}, whose cache is set by "
                f"rollout.{settings[cluster.device]} alone; choose rollout={group}, and leave the other null"
            )
