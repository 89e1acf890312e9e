"""Where a run is tracked: whether MLflow can write there, and why not, in one sentence."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from pathlib import Path

from rl_cluster.errors import ConfigError

SQLITE = "sqlite:///"
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # The tracker's own thread is the one that may wait; MLflow's own would lose errors and outlive the run.
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
_MAX_REASON = 300


def quiet_mlflow() -> None:
    """Switches off MLflow's log lines, progress bars and telemetry; to be called before its import, which reads the switches."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def check_store(uri: str) -> None:
    """Asks a server for its experiments, and whether a SQLite file could be written; makes neither file nor experiment.

    Raises ConfigError where the store cannot be used.
    """
    if uri.startswith(SQLITE):
        file = sqlite_file(uri).absolute()
        existing = next(path for path in (file, *file.parents) if path.exists())
        if not os.access(existing, os.W_OK) or (existing != file and not existing.is_dir()):
            raise unusable(uri, f"{existing} cannot be written")
        return
    quiet_mlflow()
    import mlflow

    try:
        mlflow.MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # noqa: BLE001 - MLflow stores raise errors of every library below them
        raise unusable(uri, reason(error)) from None


def unusable(uri: str, why: str) -> ConfigError:
    """The error of a store that cannot be used."""
    return ConfigError(
        f"tracking.uri={uri} cannot be used ({why}); give a writable SQLite file, a reachable server, or set tracking.enabled=false."
    )


def reason(error: BaseException) -> str:
    """Why, in a few words: the system's own where it refused a connection or a file, otherwise the first sentence of what was raised."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].partition(". ")[0][:_MAX_REASON].rstrip(". ")


def absolute(uri: str) -> str:
    """The URI, a SQLite file by its full path."""
    return f"{SQLITE}{sqlite_file(uri).absolute()}" if uri.startswith(SQLITE) else uri


def sqlite_file(uri: str) -> Path:
    return Path(uri.removeprefix(SQLITE))


def require_writable(uri: str) -> None:
    """Fails at once on a SQLite file that cannot be written, where MLflow itself would try for minutes; makes its folder."""
    if uri.startswith(SQLITE):
        sqlite_file(uri).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(sqlite_file(uri), timeout=10)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
