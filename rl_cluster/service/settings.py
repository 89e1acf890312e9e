"""What a search service is started with."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_cluster.config import SearchConfig
from rl_cluster.environments.search_tools import SearchToolSettings
from rl_cluster.retrieval.devices import Devices, devices_from_config
from rl_cluster.service.access import token_digest


@dataclass(frozen=True)
class CallLimits:
    """Of each caller and each replica: requests in one call, calls at once (two for each replica), requests that may wait; seconds for
    an answer.

    `shards`: how many the service's indexes are cut into, each of which a caller asks.
    """

    timeout_s: float = 30.0
    max_batch: int = 32
    max_in_flight: int = 4
    max_waiting: int = 1024
    shards: int = 1


@dataclass(frozen=True)
class ServiceSettings:
    """`tools`: what is deployed and offered; `digest`: that of the bearer token; `memory_gib`: for the indexes of a machine.

    `gpus_per_replica`: of each replica that compares vectors, 0 unless `devices` need some; `start_timeout_s`: until all are up.
    """

    tools: SearchToolSettings
    limits: CallLimits
    host: str
    port: int
    min_replicas: int = 1
    max_replicas: int = 1
    cpus_per_replica: float = 0.0
    threads_per_replica: int = 1
    max_ongoing_requests: int = 64
    memory_gib: float | None = None
    digest: str | None = None
    devices: Devices = field(default_factory=Devices)
    gpus_per_replica: float = 0.0
    start_timeout_s: float = 300.0


def call_limits(search: SearchConfig) -> CallLimits:
    """The limits of a configuration; enough calls at once to keep every replica busy while another one travels."""
    return CallLimits(
        search.timeout_s, search.max_batch, 2 * search.max_replicas, search.max_queued_requests, search.shards
    )


def service_settings(search: SearchConfig, tools: SearchToolSettings) -> ServiceSettings:
    """The service of a configuration. Raises ConfigError where the token is not set."""
    return ServiceSettings(
        tools=tools,
        limits=call_limits(search),
        host=search.host,
        port=search.port,
        min_replicas=search.min_replicas,
        max_replicas=search.max_replicas,
        cpus_per_replica=search.cpus_per_replica,
        threads_per_replica=search.threads_per_replica,
        max_ongoing_requests=search.max_ongoing_requests,
        memory_gib=search.memory_gib,
        digest=token_digest(search.token_env),
        devices=devices_from_config(search.model_dump()),
        gpus_per_replica=search.gpus_per_replica if search.needs_gpu else 0.0,
        start_timeout_s=search.start_timeout_s,
    )
