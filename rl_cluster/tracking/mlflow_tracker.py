"""`Tracker`: parameters, metrics, traces and files of one run in MLflow 3, without ever holding up the training.

One background thread does all writing, from a bounded queue, in the order of the calls. A write that fails, or that no
longer finds room, is counted and warned about; it raises nothing. MLflow's own log lines, progress bars and telemetry
are switched off; the only address it talks to is the tracking URI. Values of environment variables that look like
secrets are replaced wherever they occur.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.tracking.store import SQLITE, absolute, quiet_mlflow, reason, require_writable, sqlite_file, unusable

logger = logging.getLogger(__name__)

DEFAULT_URI = "sqlite:///mlflow.db"
REDACTED = "[redacted]"

_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_MIN_SECRET_LENGTH = 6
_SCAN_BYTES = 2**20
_MAX_PARAM_LENGTH = 6000
_PARAMS_PER_CALL = 100
_METRICS_PER_CALL = 1000
_LOGGED_WARNINGS = 5


class Tracker:
    """One MLflow run. Use from one thread; `finish` ends it.

    uri: MLflow tracking URI; None for the SQLite file `mlflow.db` in the working directory. Files of a SQLite run go to
    the folder `mlflow_artifacts` beside the database. params: settings, nested mappings joined with dots.
    queue_size: writes that may wait; what no longer fits counts as failed. close_deadline_s: how long `finish` waits.
    resume: the id of the MLflow run that goes on, whose parameters stay as they are; where the store has no such run, a new one
    begins.

    Raises ConfigError when the tracking store cannot be opened: better at the start than without numbers at the end.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        run_name: str,
        params: Mapping[str, Any],
        queue_size: int = 1000,
        close_deadline_s: float = 60.0,
        resume: str | None = None,
    ) -> None:
        self.uri = absolute(uri or DEFAULT_URI)
        self.num_failed_writes = 0
        self._first_failure = ""
        self._redact = _Redactor(os.environ)
        self._close_deadline_s = close_deadline_s
        self._queue: queue.Queue[tuple[str, Callable[[], None]] | None] = queue.Queue(queue_size)
        self._status = "FINISHED"
        self._finished = False
        quiet_mlflow()
        # Takes seconds, and the switches above are read at import.
        import mlflow

        try:
            require_writable(self.uri)
            # Traces go to the process-wide URI; everything else through the client.
            mlflow.set_tracking_uri(self.uri)
            logging.getLogger("mlflow").setLevel(logging.CRITICAL)
            self._client = mlflow.MlflowClient(tracking_uri=self.uri)
            self.experiment_id = self._experiment_id(self._redact.text(experiment))
            resumed = resume is not None and self._take_up(resume)
            if resume is not None and resumed:
                self.run_id: str = resume
            else:
                run = self._client.create_run(self.experiment_id, run_name=self._redact.text(run_name))
                self.run_id = run.info.run_id
        except Exception as error:  # noqa: BLE001 - MLflow stores raise errors of every library below them
            raise unusable(self._redact.text(self.uri), self._redact.text(reason(error))) from None
        self._thread = threading.Thread(target=self._write_all, name="mlflow-writer", daemon=True)
        self._thread.start()
        if not resumed:
            self._log_params(params)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers at a training step. `@` in a name becomes `_at_`, since MLflow refuses it."""
        now_ms = int(time.time() * 1000)
        values = {_metric_name(name): float(value) for name, value in metrics.items()}

        def write() -> None:
            from mlflow.entities import Metric

            entries = [Metric(name, value, now_ms, step) for name, value in values.items()]
            for start in range(0, len(entries), _METRICS_PER_CALL):
                self._client.log_batch(self.run_id, metrics=entries[start : start + _METRICS_PER_CALL])

        self._submit("metrics", write)

    def log_traces(
        self,
        trajectories: Sequence[Trajectory],
        step: int,
        limit: int,
        decode: Callable[[list[int]], str] | None = None,
    ) -> int:
        """Write up to `limit` episodes as traces, those that did not finish first; returns how many are not written.

        One root span per episode, below it one per turn, below that one per tool call, at the recorded times (Unix
        seconds). The calls of one turn all span its tool time, since they are not timed apart. `decode` turns the new
        prompt ids of each turn into text and is called here, not on the thread: tokenizers do not share well.
        """
        chosen = sorted(trajectories, key=lambda trajectory: trajectory.outcome is Outcome.FINISHED)[: max(limit, 0)]
        queued = 0
        for trajectory in chosen:
            root = self._redacted(_episode_span(trajectory, step, decode))
            queued += self._submit("trace", lambda root=root: self._write_trace(root))
        return len(trajectories) - queued

    def log_artifact(self, path: str | Path) -> None:
        """Copy a file into the run, as it is when its turn comes. A file that holds a secret is refused and counted."""
        path = Path(path)

        def write() -> None:
            if self._redact.occurs_in(path):
                raise PermissionError(f"{path.name} contains the value of a secret environment variable")
            self._client.log_artifact(self.run_id, str(path))

        self._submit("artifact", write)

    def finish(
        self, status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED", deadline_s: float | None = None
    ) -> int:
        """Write what waits, end the run with that status, and return the number of writes that failed or were left.

        Waits at most `deadline_s`, or `close_deadline_s`; a second call changes nothing.
        """
        if self._finished:
            return self.num_failed_writes
        self._finished = True
        allowed = self._close_deadline_s if deadline_s is None else deadline_s
        deadline = time.monotonic() + allowed
        self._status = status
        try:
            self._queue.put(None, timeout=allowed)
            self._thread.join(max(deadline - time.monotonic(), 0.0))
        except queue.Full:
            logger.debug("The queue had no room for the end mark.")
        if self._thread.is_alive():
            left = max(self._queue.qsize(), 1)
            self.num_failed_writes += left
            self._first_failure = self._first_failure or f"MLflow did not take them within {allowed:g} s"
            logger.warning("MLflow did not take %d writes within %g s; they are lost.", left, allowed)
        if self.num_failed_writes:
            logger.warning("%d writes to MLflow failed in this run.", self.num_failed_writes)
        return self.num_failed_writes

    @property
    def losses(self) -> str:
        """One sentence on the writes that failed, for people; empty where none did."""
        if not self.num_failed_writes:
            return ""
        return f"{self.num_failed_writes} writes to MLflow are lost; the first: {self._first_failure}"

    def _take_up(self, run_id: str) -> bool:
        """Whether the store has that run of this experiment, which then is running again."""
        from mlflow.exceptions import MlflowException

        try:
            known = self._client.get_run(run_id)
        except MlflowException:
            return False
        if known.info.experiment_id != self.experiment_id or known.info.lifecycle_stage == "deleted":
            return False
        self._client.update_run(run_id, status="RUNNING")
        return True

    def _experiment_id(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        if known is not None:
            if known.lifecycle_stage == "deleted":
                raise ValueError(f"experiment {name!r} was deleted there; restore it or choose another name")
            return known.experiment_id
        location = None
        if self.uri.startswith(SQLITE):
            location = (sqlite_file(self.uri).parent / "mlflow_artifacts" / name).as_uri()
        from mlflow.exceptions import MlflowException

        try:
            return self._client.create_experiment(name, artifact_location=location)
        except MlflowException:
            # Another run may have made it in between.
            known = self._client.get_experiment_by_name(name)
            if known is None:
                raise
            return known.experiment_id

    def _log_params(self, params: Mapping[str, Any]) -> None:
        flat = {
            _metric_name(name): self._redact.text(str(value))[:_MAX_PARAM_LENGTH] for name, value in _flatten(params)
        }

        def write() -> None:
            from mlflow.entities import Param

            entries = [Param(name, value) for name, value in flat.items()]
            for start in range(0, len(entries), _PARAMS_PER_CALL):
                self._client.log_batch(self.run_id, params=entries[start : start + _PARAMS_PER_CALL])

        self._submit("params", write)

    def _submit(self, what: str, write: Callable[[], None]) -> bool:
        try:
            if self._finished:
                raise RuntimeError("the run is finished")
            self._queue.put_nowait((what, write))
        except (queue.Full, RuntimeError) as error:
            self._count_failure(what, str(error) or "the queue is full")
            return False
        return True

    def _write_all(self) -> None:
        while (entry := self._queue.get()) is not None:
            self._attempt(*entry)
        self._attempt("status", lambda: self._client.set_terminated(self.run_id, status=self._status))

    def _attempt(self, what: str, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - whatever the store raises, training goes on
            self._count_failure(what, str(error))

    def _count_failure(self, what: str, reason: str) -> None:
        self.num_failed_writes += 1
        reason = self._redact.text(reason)
        self._first_failure = self._first_failure or f"{what}: {reason.splitlines()[0] if reason else reason}"
        if self.num_failed_writes <= _LOGGED_WARNINGS:
            logger.warning("Writing %s to MLflow failed: %s", what, reason)

    def _write_trace(self, root: _Span) -> None:
        span = self._client.start_trace(
            root.name,
            span_type=root.kind,
            inputs=root.inputs,
            attributes=root.attributes,
            tags={"step": str(root.attributes["step"]), "outcome": str(root.attributes["outcome"])},
            experiment_id=self.experiment_id,
            start_time_ns=root.start_ns,
            run_id=self.run_id,
        )
        for child in root.children:
            self._write_span(span.trace_id, span.span_id, child)
        self._client.end_trace(span.trace_id, outputs=root.outputs, status=root.status, end_time_ns=root.end_ns)
        # MLflow swallows errors of its exporter, so that only reading back tells.
        written = len(self._client.get_trace(span.trace_id, display=False).data.spans)
        if written != root.size:
            raise RuntimeError(f"{written} of {root.size} spans of the trace were stored")

    def _write_span(self, trace_id: str, parent_id: str, span: _Span) -> None:
        started = self._client.start_span(
            span.name,
            trace_id=trace_id,
            parent_id=parent_id,
            span_type=span.kind,
            inputs=span.inputs,
            attributes=span.attributes,
            start_time_ns=span.start_ns,
        )
        for child in span.children:
            self._write_span(trace_id, started.span_id, child)
        self._client.end_span(
            trace_id, started.span_id, outputs=span.outputs, status=span.status, end_time_ns=span.end_ns
        )

    def _redacted(self, span: _Span) -> _Span:
        span.inputs = self._redact.value(span.inputs)
        span.outputs = self._redact.value(span.outputs)
        span.attributes = self._redact.value(span.attributes)
        span.name = self._redact.text(span.name)
        for child in span.children:
            self._redacted(child)
        return span


@dataclass
class _Span:
    name: str
    kind: str
    start_ns: int
    end_ns: int
    status: str
    inputs: Any
    outputs: Any
    attributes: dict[str, Any]
    children: list[_Span] = field(default_factory=list)

    @property
    def size(self) -> int:
        return 1 + sum(child.size for child in self.children)


def _episode_span(trajectory: Trajectory, step: int, decode: Callable[[list[int]], str] | None) -> _Span:
    root = _Span(
        name="episode",
        kind="AGENT",
        start_ns=_nanoseconds(trajectory.started_at),
        end_ns=_nanoseconds(max(trajectory.finished_at, trajectory.started_at)),
        status="OK" if trajectory.outcome is Outcome.FINISHED else "ERROR",
        inputs={"task_id": trajectory.task_id},
        outputs={"ranking": list(trajectory.ranking), "reward": trajectory.reward, "error": trajectory.error},
        attributes={
            "step": step,
            "trajectory_id": trajectory.trajectory_id,
            "group_id": trajectory.group_id,
            "attempt": trajectory.attempt,
            "worker": trajectory.worker,
            "outcome": trajectory.outcome.value,
            "oldest_version": trajectory.oldest_version,
            "sampled_tokens": trajectory.num_sampled,
            "reward_components": dict(trajectory.reward_components),
        },
    )
    so_far: list[int] = []
    for number, turn in enumerate(trajectory.turns):
        prompt_ids = list(turn.prompt_ids)
        extends = prompt_ids[: len(so_far)] == so_far
        new_ids = prompt_ids[len(so_far) :] if extends else prompt_ids
        root.children.append(_turn_span(number, turn, new_ids, extends, decode))
        so_far = prompt_ids + list(turn.sampled_ids)
    return root


def _turn_span(
    number: int, turn: Turn, new_ids: list[int], extends: bool, decode: Callable[[list[int]], str] | None
) -> _Span:
    times = turn.times
    tools_start = turn.started_at + times.queue_s + times.prefill_s + times.decode_s
    tools_end = tools_start + times.tool_s
    text = turn.text or (decode(list(turn.sampled_ids)) if decode else "")
    calls = [
        _Span(
            name=call.name or "tool",
            kind="TOOL",
            start_ns=_nanoseconds(tools_start),
            end_ns=_nanoseconds(tools_end),
            status="ERROR" if call.error else "OK",
            inputs=dict(call.arguments),
            outputs=call.error or {"found": list(call.found_ids)},
            attributes={},
        )
        for call in turn.tool_calls
    ]
    return _Span(
        name=f"turn {number}",
        kind="LLM",
        start_ns=_nanoseconds(turn.started_at),
        end_ns=_nanoseconds(tools_end),
        status="OK",
        inputs={"new_prompt": decode(new_ids) if decode else None, "new_tokens": len(new_ids)},
        outputs={"text": text, "finish_reason": turn.finish_reason, "observation": "\n".join(turn.observations)},
        attributes={
            "prompt_tokens": len(turn.prompt_ids),
            "sampled_tokens": len(turn.sampled_ids),
            "extends_previous": extends,
            "weight_versions": sorted(set(turn.weight_versions)),
            "mixed_cache_tokens": turn.mixed_cache_tokens,
            "queue_s": times.queue_s,
            "prefill_s": times.prefill_s,
            "decode_s": times.decode_s,
            "tool_s": times.tool_s,
        },
        children=calls,
    )


class _Redactor:
    """Replaces the values of secret-looking environment variables.

    Values under six characters stay: they are switches (`TOKENIZERS_PARALLELISM=false`), and replacing them would eat
    ordinary text.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = {
            value
            for name, value in environment.items()
            if any(word in name.upper() for word in _SECRET_WORDS) and len(value) >= _MIN_SECRET_LENGTH
        }
        # Longest first, so that a secret that contains another one leaves no rest.
        self._secrets = sorted(found, key=len, reverse=True)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(entry) for entry in value]
        return value

    def occurs_in(self, path: Path) -> bool:
        """Whether a file holds a secret in plain bytes; reads it in blocks that overlap by the longest secret."""
        secrets = [os.fsencode(secret) for secret in self._secrets]
        overlap = max((len(secret) for secret in secrets), default=1) - 1
        tail = b""
        with path.open("rb") as file:
            while block := file.read(_SCAN_BYTES):
                block = tail + block
                if any(secret in block for secret in secrets):
                    return True
                tail = block[-overlap:] if overlap else b""
        return False


def _flatten(params: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in params.items():
        if isinstance(value, Mapping):
            flat += _flatten(value, f"{prefix}{name}.")
        else:
            flat.append((f"{prefix}{name}", value))
    return flat


def _metric_name(name: str) -> str:
    return re.sub(r"[^\w\-./ :]", "_", name.replace("@", "_at_"))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9) if seconds > 0 else time.time_ns()
