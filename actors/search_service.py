"""The search service as a Ray Serve application: one deployment for each tool, and one that speaks HTTP.

Rollout workers call the tools' deployments through handles (actors.search_client); people and other programs use HTTP, on
localhost unless the configuration says otherwise. One application for each run; one that an earlier job of the same name left
is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import ray
from ray import serve
from ray.serve.config import BackpressureConfig

from actors.index_registry import NAMESPACE, registry_name
from actors.search_client import DEPLOYMENTS, ServeSearchClient
from actors.search_replica import REPLICAS
from rl_cluster.errors import ClusterError
from rl_cluster.service.settings import CallLimits, ServiceSettings
from rl_cluster.service.values import IndexDescription

_LOGGING = {"log_level": "WARNING", "enable_access_log": False}
_INGRESS_REQUESTS = 1000
_TARGET_ONGOING = 2
"""Calls at a replica, each of many requests, over which another replica is started."""


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """Raises ClusterError when another program listens on `port` of `host`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ClusterError(
                f"search.port={port} is in use on {host}; stop its owner or set search.port to a free one."
            ) from error


def is_serving() -> bool:
    """Whether Ray Serve already runs on this cluster (its own port is then taken by itself)."""
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def start_search(indexes: dict[str, str], app_name: str, settings: ServiceSettings, route_prefix: str = "") -> None:
    """Deploys the application over `indexes` (name -> folder) and returns when it is healthy.

    `route_prefix`: of its URLs; `/` and the application's name by default.
    """
    if not is_serving():
        check_port(settings.port, settings.host)
    serve.start(http_options={"host": settings.host, "port": settings.port}, logging_config=_LOGGING)
    stop_search(app_name)
    options = _options(settings)
    names = [name for name in settings.tools.tools if name in REPLICAS]
    tools = [
        serve.deployment(REPLICAS[name], name=DEPLOYMENTS[name], **options).bind(app_name, indexes, settings)
        for name in names
    ]
    ingress = serve.deployment(
        _ingress(app_name, settings, names[0]),
        name="SearchIngress",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_INGRESS_REQUESTS,
        max_queued_requests=settings.limits.max_waiting,
        backpressure_config=BackpressureConfig(retry_after_s=1),
    )
    prefix = route_prefix or f"/{app_name}"
    serve.run(ingress.bind(*tools), name=app_name, route_prefix=prefix, logging_config=_LOGGING)


def _options(settings: ServiceSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_ongoing_requests": settings.max_ongoing_requests,
        "max_queued_requests": settings.limits.max_waiting,
        "ray_actor_options": {"num_cpus": settings.cpus_per_replica},
        "health_check_period_s": 2.0,
    }
    if settings.min_replicas == settings.max_replicas:
        return options | {"num_replicas": settings.min_replicas}
    autoscaling = {
        "min_replicas": settings.min_replicas,
        "max_replicas": settings.max_replicas,
        "target_ongoing_requests": _TARGET_ONGOING,
    }
    return options | {"autoscaling_config": autoscaling}


def _ingress(app_name: str, settings: ServiceSettings, documents_from: str) -> type:
    def build() -> Any:
        from rl_cluster.service.http_app import HttpSettings, build_app

        http = HttpSettings(settings.tools, settings.limits.timeout_s, settings.host, settings.digest)
        return build_app(ServeSearchClient(app_name, settings.limits, documents_from), http)

    return serve.ingress(build)()


def stop_search(app_name: str) -> None:
    """Deletes this run's application; others stay."""
    if is_serving() and app_name in serve.status().applications:
        serve.delete(app_name)
    with contextlib.suppress(ValueError):  # there is none
        ray.kill(ray.get_actor(registry_name(app_name), NAMESPACE))


def swap_index(app_name: str, name: str, folder: str, documents_from: str = "bm25_search") -> IndexDescription:
    """Makes `name` stand for the index in `folder`, without a request that fails; returns when all replicas have switched.

    Raises IndexFormatError where a replica cannot open the folder; then all go on with what they have.
    """
    return asyncio.run(ServeSearchClient(app_name, CallLimits(), documents_from).swap(name, folder))
