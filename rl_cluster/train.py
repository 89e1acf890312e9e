"""The main job: `python -m rl_cluster.train experiment=quickstart algorithm/loss=cispo`, submitted to a Ray cluster.

Everything is checked before anything is started: settings here, then files and model, then the cluster's resources.
`dry_run=true` stops after the checks and prints what would run.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from rl_cluster.composition import check_command_line, to_config
from rl_cluster.config import Config
from rl_cluster.errors import ClusterError, RLClusterError
from rl_cluster.own_folder import own_folder

STOP_TIMEOUT_S = 15.0
SWEEP_TIMEOUT_S = 4.0
"""Both together are under the 20 s that a stopped job has."""
POLL_S = 0.5


@hydra.main(version_base="1.3", config_path="pkg://hydra_conf", config_name="config")
def _main(settings: DictConfig) -> None:
    sys.exit(run(to_config(settings)))


def run(config: Config) -> int:
    """Checks everything, then runs the job to its end; the process's exit code."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110)
    try:
        from rl_cluster.config_warnings import warnings_of
        from rl_cluster.preflight import check_inputs_apart, fit

        check_inputs_apart(config)
        _connect(config)
        found = fit(config)
        if found.lacks:
            console.print(found.table)
            raise ClusterError(
                f"The cluster cannot hold the job (see the table): it lacks {', and '.join(found.lacks)}; {', and '.join(found.mends)}."
            )
        _check_search_port(config)
        _check_transport(config)
        for busy in found.busy:
            console.print(
                f"[yellow]warning:[/] the job asks for {busy}: other work holds the cluster, and this waits for it until its start times out",
                highlight=False,
                soft_wrap=True,
            )
        if config.dry_run:
            console.print_json(json.dumps(config.model_dump(mode="json")))
            console.print(found.table)
            for warning in warnings_of(config):
                console.print(f"[yellow]warning:[/] {_escape(warning)}", highlight=False, soft_wrap=True)
            return 0
        with own_folder(Path(config.output_dir), "job"):
            return _follow(config, console)
    except RLClusterError as error:
        console.print(f"[bold red]error:[/] {_escape(str(error))}", highlight=False, soft_wrap=True)
        return 2


def _connect(config: Config) -> None:
    """Connects to the cluster that this job runs on, or to the one that RAY_ADDRESS names."""
    import ray

    address = os.environ.get("RAY_ADDRESS", "auto")
    listener = _require_listener(address, config.cluster.address_timeout_s)
    if listener is not None and not address.startswith("ray://"):
        _require_token(listener)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"No Ray cluster answers at address {address!r}; start one with `ray start --head` or set RAY_ADDRESS."
        ) from error


def _require_listener(address: str, timeout_s: float) -> str | None:
    """Where the cluster listens, as far as that is known. Ray itself would try for minutes. Raises ClusterError when nothing listens
    where the cluster should be."""
    if address == "auto":
        # Where Ray notes the cluster that runs on this machine.
        note = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
        if not note.is_file():
            return None
        address = note.read_text().strip()
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():
        return None
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            spoken = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true") or _speaks_http2(connection)
    except (OSError, ValueError) as error:  # ValueError: a host that cannot be one
        raise ClusterError(
            f"No Ray cluster answers at address {address!r} ({error}); start one with `ray start --head` or set RAY_ADDRESS."
        ) from error
    if not spoken:
        raise ClusterError(
            f"What answers at address {address!r} is no Ray cluster; start one with `ray start --head` or set RAY_ADDRESS."
        )
    return address


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether a server greets as each of Ray's does: a client's preface and empty settings (RFC 9113, section 3.4) are answered with a
    frame of settings, type 4."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
    greeting = connection.recv(9, socket.MSG_WAITALL)
    return len(greeting) == 9 and greeting[3] == 4


def _require_token(address: str) -> None:
    """Raises ClusterError where a cluster asks for a token that this process does not give; Ray itself would try for long and then say
    that nothing answers."""
    # No public part of Ray asks once and says why.
    from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
    from ray.exceptions import AuthenticationError, RayError

    try:
        GcsClient(address=address)
    except AuthenticationError as error:
        raise ClusterError(
            f"The Ray cluster at {address!r} asks for a token, and this process gives none or another; set RAY_AUTH_MODE=token, with the "
            "token in ~/.ray/auth_token or RAY_AUTH_TOKEN."
        ) from error
    except RayError as error:
        raise ClusterError(
            f"No Ray cluster answers at address {address!r} ({error}); start one with `ray start --head` or set RAY_ADDRESS."
        ) from error


def _check_search_port(config: Config) -> None:
    """A port taken by Ray Serve itself is no obstacle: applications share it."""
    from actors.search_service import check_address

    if config.search.external is None:
        check_address(config.search.host, config.search.port)


def _check_transport(config: Config) -> None:
    """A file in shared memory is seen on its own node alone, and Ray may place workers on any."""
    import ray

    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    if nodes > 1 and config.weight_sync.transport == "shared_memory":
        raise ClusterError(
            f"weight_sync.transport=shared_memory brings weights to workers on the learner's node only, but the cluster has {nodes} nodes; "
            "set weight_sync=object_store, or nccl between GPUs."
        )


def _follow(config: Config, console: Any) -> int:
    import ray
    from ray.exceptions import RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from actors.coordinator import Coordinator
    from rl_cluster.learning.checkpoint import STATE
    from rl_cluster.learning.model_folder import validation_of
    from rl_cluster.tracking.terminal import Terminal

    # Checkpoints are written by both, so the coordinator stays with this process on the head.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    coordinator = Coordinator.options(scheduling_strategy=here).remote(config)
    terminal = Terminal(console, config)
    stopping = {"since": 0.0}

    def stop(signum: int, frame: Any) -> None:
        if not stopping["since"]:
            stopping["since"] = time.monotonic()
            coordinator.stop.remote()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    result = coordinator.run.remote()
    seen, whole = 0, False
    try:
        while True:
            done, _ = ray.wait([result], timeout=POLL_S)
            for event in _events(coordinator, seen):
                seen += 1
                terminal.show(event)
            if done:
                break
            if stopping["since"] and time.monotonic() - stopping["since"] > STOP_TIMEOUT_S:
                break
        if stopping["since"]:
            if any((Path(config.output_dir) / "checkpoints").glob(f"step_*/{STATE}")):
                console.print("stopped; the last checkpoint is kept, and the same command continues from it")
            else:
                console.print("stopped before the first checkpoint; the same command starts anew")
            return 130
        try:
            ray.get(result)
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, RLClusterError) else None
            if cause is None:
                raise
            raise cause from None
        output = Path(config.output_dir)
        terminal.finish(ray.get(coordinator.result_table.remote(), timeout=60), output, validation_of(output, "best"))
        whole = True
        return 0
    except Exception:
        # Whatever went wrong here, the run's processes end as at a stop, and take their files with them.
        coordinator.stop.remote()
        ray.wait([result], timeout=STOP_TIMEOUT_S)
        raise
    finally:
        if not whole:
            _sweep(coordinator, config)


def _sweep(coordinator: Any, config: Config) -> None:
    """Ends the coordinator, and the search service that it may have left: one that is being deployed outlives it otherwise."""
    import ray

    from actors.run_parts import search_app
    from actors.search_service import stop_search

    ray.kill(coordinator)
    if config.search.external is None:
        sweeping = threading.Thread(target=stop_search, args=(search_app(config),), daemon=True)
        sweeping.start()
        sweeping.join(SWEEP_TIMEOUT_S)


def _events(coordinator: Any, seen: int) -> list[dict[str, Any]]:
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    from actors.remote import is_loss

    try:
        return ray.get(coordinator.events.remote(seen), timeout=30)
    except GetTimeoutError:
        return []  # a busy coordinator is asked again at the next poll
    except RayError as error:
        if not is_loss(error):
            raise
        raise ClusterError(f"The coordinator died: {str(error).splitlines()[0]}") from error


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def main() -> None:
    """Entry point; a wrong command line ends with one sentence and exit code 2."""
    check_command_line(sys.argv[1:])
    _main()


if __name__ == "__main__":
    main()
