"""The search service as a Ray Serve application: one deployment for each tool, and one that speaks HTTP.

Rollout workers call the tools' deployments through handles (actors.search_client); people and other programs use HTTP, on
localhost unless the configuration says otherwise. One application for each run; one that an earlier job of the same name left
is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import BackpressureConfig
from ray.serve.exceptions import RayServeException

from actors.index_registry import NAMESPACE, registry_name
from actors.search_client import ServeSearchClient, deployments
from actors.search_replica import REPLICAS
from rl_cluster.errors import ClusterError, DeadlineError, RLClusterError
from rl_cluster.service.settings import CallLimits, ServiceSettings
from rl_cluster.service.values import TOOL_PARTS, IndexDescription, documents_tool

_LOGGING = {"log_level": "WARNING", "enable_access_log": False}
_INGRESS_REQUESTS = 1000
_TARGET_ONGOING = 2
"""Calls at a replica, each of many requests, over which another replica is started."""
_UPSCALE_DELAY_S, _LOOK_BACK_S = 5.0, 15.0
"""Episodes come in bursts of minutes, so replicas follow the load within seconds."""
_POLL_S = 0.5
_REGISTRY_TIMEOUT_S = 10.0
_CONTROLLER_TIMEOUT_S = 30.0


def check_address(host: str, port: int) -> None:
    """Raises ClusterError where `host` and `port` cannot be listened on: another program does, or Ray Serve runs already and
    listens elsewhere, which no later application changes."""
    controller = _controller()
    if controller is None:
        check_port(port, host)
        return
    options: Any = ray.get(controller.get_http_config.remote(), timeout=_CONTROLLER_TIMEOUT_S)
    if (options.host, options.port) != (host, port):
        raise ClusterError(
            f"search.host={host} and search.port={port}: Ray Serve of this cluster listens at host {options.host} and port {options.port} "
            "already, for all its applications; set search.host and search.port to these, or end it with `serve shutdown`."
        )


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """Raises ClusterError when another program listens on `port` of `host`, or `host` is no address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ClusterError(
                f"search.port={port} is in use on {host}; stop its owner or set search.port to a free one."
            ) from error
        raise ClusterError(
            f"search.host={host}: it is no address that this machine can listen on ({error.strerror or error}); set it to one of its own."
        ) from error


def is_serving() -> bool:
    """Whether Ray Serve already runs on this cluster (its own port is then taken by itself)."""
    return _controller() is not None


def _controller() -> Any:
    try:
        return ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return None


def start_search(indexes: dict[str, str], app_name: str, settings: ServiceSettings, route_prefix: str = "") -> None:
    """Deploys the application over `indexes` (name -> folder) and returns when it is healthy.

    `route_prefix`: of its URLs; `/` and the application's name by default. Raises the error of the first replica that cannot
    start (IndexFormatError, ModelError, ConfigError), ClusterError where Ray Serve gives the reason or listens elsewhere, and
    DeadlineError after `settings.start_timeout_s`; then nothing is left of the application.
    """
    check_address(settings.host, settings.port)
    serve.start(http_options={"host": settings.host, "port": settings.port}, logging_config=_LOGGING)
    stop_search(app_name)
    names = [name for name in settings.tools.tools if name in REPLICAS]
    tools = []
    shards = {tool: deployments(tool, settings.limits.shards) for tool in names}
    everything = tuple(name for found in shards.values() for name in found)
    for tool, found in shards.items():
        for shard, name in enumerate(found):
            deployed = serve.deployment(REPLICAS[tool], name=name, **_options(settings, tool))
            tools.append(deployed.bind(app_name, indexes, settings, everything, shard, len(found)))
    ingress = serve.deployment(
        _ingress(app_name, settings, documents_tool(names)),
        name="SearchIngress",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_INGRESS_REQUESTS,
        max_queued_requests=settings.limits.max_waiting,
        backpressure_config=BackpressureConfig(retry_after_s=1),
    )
    target = serve.RunTarget(ingress.bind(*tools), app_name, route_prefix or f"/{app_name}", _LOGGING)
    try:
        # `serve.run` would wait for ever, and try a replica again that cannot start.
        serve.run_many([target], wait_for_applications_running=False)
        _wait_until_up(app_name, settings.start_timeout_s)
    except (RLClusterError, RayServeException, RayError, TimeoutError) as error:
        with contextlib.suppress(TimeoutError):  # what cannot be deleted now is replaced by the next start
            stop_search(app_name)
        if isinstance(error, RLClusterError):
            raise
        raise ClusterError(f"The search service could not be deployed: {_said(str(error))}.") from error


def _wait_until_up(app_name: str, timeout_s: float) -> None:
    """Raises the first replica's reason where the application does not come up; see `start_search`."""
    deadline = time.monotonic() + timeout_s
    while True:
        failure = _start_failure(app_name)
        if failure is not None:
            raise failure
        application = serve.status().applications.get(app_name)
        if application is not None and application.status == "RUNNING":
            return
        if application is not None and application.status == "DEPLOY_FAILED":
            raise ClusterError(f"The search service did not start: {_said(application.message)}.")
        if time.monotonic() >= deadline:
            raise DeadlineError(
                f"The search service was not up within search.start_timeout_s={timeout_s:.0f} s; are its replicas waiting for "
                "resources?"
            )
        time.sleep(_POLL_S)


def _start_failure(app_name: str) -> RLClusterError | None:
    """Why a replica cannot start, as it told the registry; None where nothing is known."""
    try:
        registry: Any = ray.get_actor(registry_name(app_name), NAMESPACE)
        return ray.get(registry.start_failure.remote(), timeout=_REGISTRY_TIMEOUT_S)
    except (ValueError, RayError):  # no replica has opened it yet, or it is of an earlier start and just ending
        return None


def _said(message: str) -> str:
    """The first and the last line of a message that may hold a traceback."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason is given"]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:500].rstrip(".")


def _options(settings: ServiceSettings, tool: str) -> dict[str, Any]:
    gpus = settings.gpus_per_replica if "vector" in TOOL_PARTS[tool] else 0.0
    options: dict[str, Any] = {
        "max_ongoing_requests": settings.max_ongoing_requests,
        "max_queued_requests": settings.limits.max_waiting,
        "ray_actor_options": {"num_cpus": settings.cpus_per_replica, "num_gpus": gpus},
        "health_check_period_s": 2.0,
    }
    if settings.min_replicas == settings.max_replicas:
        return options | {"num_replicas": settings.min_replicas}
    autoscaling = {
        "min_replicas": settings.min_replicas,
        "max_replicas": settings.max_replicas,
        "target_ongoing_requests": _TARGET_ONGOING,
        "upscale_delay_s": _UPSCALE_DELAY_S,
        "look_back_period_s": _LOOK_BACK_S,
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


def swap_index(
    app_name: str, name: str, folder: str, documents_from: str = "bm25_search", shards: int = 1
) -> IndexDescription:
    """Makes `name` stand for the index in `folder`, without a request that fails; returns when all replicas have switched.

    `shards`: how many the service's indexes are cut into. Raises IndexFormatError where a replica cannot open the folder; then
    all go on with what they have.
    """
    limits = CallLimits(shards=shards)
    return asyncio.run(ServeSearchClient(app_name, limits, documents_from).swap(name, folder))
