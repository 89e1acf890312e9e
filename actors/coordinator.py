"""`Coordinator`: runs one job from its data to its report.

Stages: prepare (index, search service, learner), warm-up, evaluation of the start, asynchronous RL, evaluation of the
end, control arm (where asked for), report; with `training.max_steps=0` warm-up alone, evaluated on both sides. Rollouts and training go on at the same time; the ledger, the staleness
policy and the buffer say what may start and what may be trained, this actor only carries messages between them.

Invariants: a group is marked trained only after its step is complete; a checkpoint holds learner, ledger and history of
one moment; whatever ends the run, its actors and its search application are gone afterwards.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from ray import get_runtime_context
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.alarm_stage import AlarmStage
from actors.evaluation_stage import EvaluationStage
from actors.event_log import EventLog
from actors.generation import Generation
from actors.learner import LearnerGroup
from actors.remote import actor, ask, within
from actors.rollout_pool import RolloutPool
from actors.run_parts import (
    advantage_settings,
    episode_limits,
    learner_options,
    learner_settings,
    prepare_search,
    remove_snapshots,
    search_access,
    search_app,
    update_settings,
    worker_options,
    worker_settings,
)
from actors.search_client import open_search
from actors.search_service import stop_search
from actors.shared_folder import check_shared_folder
from actors.system_meter import SystemMeter
from actors.trajectory_buffer import TrajectoryBuffer
from actors.warmup import clone, demonstration_rows
from actors.weight_sync import WeightSync
from rl_cluster.config import Config
from rl_cluster.config_warnings import warnings_of
from rl_cluster.episodes.rendering import decoder
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import CheckpointError, LearnerError
from rl_cluster.inference.engine import DEVICE_BACKENDS
from rl_cluster.learning.batch import build_step_batch, rows_of_groups
from rl_cluster.learning.checkpoint import (
    RunState,
    check_same_data,
    checkpoint_folder,
    checkpoint_steps,
    commit_checkpoint,
    last_checkpoint,
    last_progress,
    note_progress,
    partial_folder,
    read_state,
)
from rl_cluster.learning.drift_alarm import check_drift
from rl_cluster.learning.model_card import write_model_card
from rl_cluster.learning.model_folder import begin_model, commit_model, validation_of
from rl_cluster.models.source import resolve_model
from rl_cluster.scheduling.curriculum import Curriculum
from rl_cluster.scheduling.ledger import TaskLedger
from rl_cluster.scheduling.staleness import StalenessPolicy
from rl_cluster.scheduling.task_queue import TaskQueue
from rl_cluster.scheduling.worker_health import HealthPolicy
from rl_cluster.tracking.report import RunReport
from rl_cluster.tracking.run_tracker import RunTracker, Status

CLOSE_TIMEOUT_S = 10.0


@actor(num_cpus=0, max_concurrency=20)
class Coordinator:
    """One per job. `run` does everything; `events` is what a terminal shows; `stop` ends the run cleanly."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.output = Path(config.output_dir)
        self.checkpoints = self.output / "checkpoints"
        self.log = EventLog()
        self.completed_steps = 0
        self.sequence = 0
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] = {}
        self.rl_seconds = 0.0
        self.rl_started: float | None = None
        self.trained_steps = 0
        self.pool: RolloutPool | None = None
        self.running: asyncio.Task[Any] | None = None

    async def events(self, since: int) -> list[dict[str, Any]]:
        """What happened after event number `since`."""
        return self.log.since(since)

    async def result_table(self) -> Any:
        """The final tables, as rich renders them."""
        return self.report.table()

    async def stop(self) -> None:
        """Cancels `run`, which then cleans up after itself."""
        if self.running is not None:
            self.running.cancel()

    async def run(self) -> dict[str, Any]:
        """The whole job; returns the report as JSON."""
        self.running = asyncio.ensure_future(self._run())
        return await self.running

    async def _run(self) -> dict[str, Any]:
        steps = checkpoint_steps(self.checkpoints)
        resumed = self.config.resume == "auto" and bool(steps)
        self.tracker = RunTracker(self.config, self.output, resumed)
        self.report = RunReport(self.config, self.output, steps[-1] if resumed else None)
        self.alarms = AlarmStage(self.config.evaluation.external_metric, self.report, self.tracker, self.log)
        status: Status = "FAILED"
        try:
            await self._prepare()
            await (self._train_and_evaluate() if self.config.training.max_steps else self._fine_tune())
            paths = await asyncio.to_thread(self.report.finish, self.ledger.summary(), self.history, self.rl_seconds)
            self.tracker.log_report(paths)
            status = "FINISHED"
            return self.report.as_json()
        except asyncio.CancelledError:
            status = "KILLED"
            raise
        finally:
            await self._close(status)

    async def _prepare(self) -> None:
        config = self.config
        learner = config.learner
        model_path = await asyncio.to_thread(resolve_model, config.model.name)
        async with self.log.while_busy("preparing documents and index"):
            # Both starts are mostly imports, which one core each can do.
            self.data, self.learner = await asyncio.gather(
                prepare_search(config, model_path),
                LearnerGroup.start(
                    learner_settings(config, model_path),
                    learner.num_ranks,
                    learner_options(config),
                    learner.start_timeout_s,
                ),
            )
        self.log.say(self.data.search_summary)
        for warning in warnings_of(config):
            self.log.say(f"warning: {warning}")
        await check_shared_folder(self.learner, self.output, config.learner.zero_stage > 0)
        if config.tracking.enabled and config.tracking.traces_per_step:
            self.tracker.decode = await asyncio.to_thread(decoder, model_path)
        self.clients = open_search(search_access(config))
        strategy = NodeAffinitySchedulingStrategy(self.learner.node_id, soft=False)
        self.sync = WeightSync.options(scheduling_strategy=strategy).remote()
        policy = StalenessPolicy(config.staleness.max_steps_off_policy, config.training.global_batch_size)
        self.policy = policy
        remove_snapshots(config)
        # Its journal lies beside the checkpoints.
        here = NodeAffinitySchedulingStrategy(get_runtime_context().get_node_id(), soft=False)
        self.buffer = TrajectoryBuffer.options(scheduling_strategy=here).remote(
            str(self.output / "journal.bin"), policy
        )
        self.limits = episode_limits(config, config.rollout.temperature)

    async def _train_and_evaluate(self) -> None:
        config = self.config
        await self._restore_or_warm_up()
        await self._set_reference()
        await self._publish()
        await self._start_workers()
        if config.evaluation.test_at_start:
            await self._evaluate_test("before", 0)
        if config.training.val_at_start and not self.history:
            await self._validate()
        self.rl_started = time.monotonic()
        await self._train()
        self.rl_seconds, self.rl_started = self._rl_seconds(), None
        if config.evaluation.test_at_end:
            await self._evaluate_test("after", self.completed_steps)
        await self._save_model("final")
        if config.evaluation.control:
            await self._control_arm()

    async def _fine_tune(self) -> None:
        """Cloning alone: `before` is the model as it came."""
        evaluation = self.config.evaluation
        self.ledger = TaskLedger([task.task_id for task in self.data.train], self.config.seed, 1)
        await self._publish()
        await self._start_workers()
        if evaluation.test_at_start:
            await self._evaluate_test("before", 0)
        await self._clone("warm-up", steps=self.config.warmup.steps)
        await self._publish()
        if evaluation.test_at_end:
            await self._evaluate_test("after", 0)
        await self._save_model("final")

    async def _restore_or_warm_up(self) -> None:
        config, training = self.config, self.config.training
        task_ids = [task.task_id for task in self.data.train]
        folder = last_checkpoint(self.checkpoints) if config.resume == "auto" else None
        self.ledger = TaskLedger(task_ids, config.seed, training.max_epochs)
        curriculum = Curriculum(config.seed) if training.curriculum == "difficulty" else None
        self.queue = TaskQueue(self.ledger, curriculum)
        if folder is not None:
            state = read_state(folder)
            check_same_data(folder, state.data, self.data.identity)
            self.queue.load_state_dict(state.queue, task_ids, training.max_epochs)
            self.ledger = self.queue.ledger
            await self.learner.call("load", training.step_timeout_s, str(folder))
            self.completed_steps, self.history = state.completed_steps, state.history
            self.rl_seconds = state.rl_seconds
            best = validation_of(self.output, "best")
            # One of a step that a crash has undone is no model of this lineage.
            self.best = best if best and best["step"] <= self.completed_steps else {}
            self._say_what_was_undone()
            restoring = self.buffer.restore.remote(self.ledger.returned_ids(), self.completed_steps)
            kept = await ask("The buffer", restoring, training.step_timeout_s)
            for ticket in self.ledger.claim(kept):
                self.ledger.finish(ticket.group_id)
            self.log.say(f"resumed at step {self.completed_steps} from {folder}; {len(kept)} finished groups kept")
            return
        await ask("The buffer", self.buffer.restore.remote([], 0))
        if config.warmup.enabled and config.warmup.steps:
            await self._clone("warm-up", steps=config.warmup.steps)
            await self.learner.call("reset_optimizer", training.step_timeout_s)
        await self._checkpoint()

    def _say_what_was_undone(self) -> None:
        last = last_progress(self.checkpoints)
        if last > self.completed_steps:
            self.tracker.counts["training/redone_steps"] += last - self.completed_steps
            self.log.say(
                f"steps {self.completed_steps + 1} to {last} had no checkpoint when the run ended, and are made again"
            )

    async def _set_reference(self) -> None:
        """Keeps the policy that is evaluated as `before` in `start`, and gives the learner its reference or teacher."""
        reference, folder = self.config.learner.reference, self.output / "start"
        if not self.completed_steps and (reference == "start" or self.config.evaluation.test_at_start):
            await self._save_model("start")
        if reference is None:
            return
        if reference == "start":
            if not folder.exists():
                raise CheckpointError(
                    f"{folder} is gone, but learner.reference=start asks for it; restore it or start anew under another run_name."
                )
            reference = str(folder)
        else:
            reference = await asyncio.to_thread(resolve_model, reference, "learner.reference")
        await self.learner.call("set_reference", self.config.training.step_timeout_s, reference)

    async def _clone(self, name: str, steps: int | None = None, seconds: float | None = None) -> int:
        rows = await demonstration_rows(self.config, self.data.model_path, self.data.train, self.clients)
        wanted = self.config.warmup.demonstrations
        few = f" of warmup.demonstrations={wanted}: no other task can be demonstrated" if len(rows) < wanted else ""
        self.log.say(f"{len(rows)} demonstrations are written{few}")
        return await clone(self.config, self.learner, rows, self.tracker, self.log, name, steps, seconds)

    async def _publish(self) -> None:
        config, transport = self.config, self.config.weight_sync.transport
        self.sequence += 1
        if transport in DEVICE_BACKENDS:
            weights = await self.learner.publish_on_device(
                self.sequence, self.data.probe_ids, transport, config.weight_sync.timeout_s
            )
            await ask("The weight sync", self.sync.publish.remote(weights, self.learner.ranks[0]))
            return
        name = f"{self.data.run_id}-{self.sequence:06d}.safetensors"
        path = str(Path(config.weight_sync.folder) / name)
        weights = await self.learner.publish(path, self.data.probe_ids, config.weight_sync.timeout_s)
        await ask("The weight sync", self.sync.publish.remote(weights))

    async def _start_workers(self) -> None:
        config = self.config
        health = HealthPolicy(
            start_deadline_s=config.rollout.start_timeout_s,
            sync_deadline_s=config.weight_sync.timeout_s,
            suspect_after_s=60.0,
            dead_after_s=120.0,
            max_restarts=config.rollout.max_restarts,
        )
        modules: list[str] = []
        if config.weight_sync.lora == "adapter":
            modules = (await self.learner.call("adapter_modules", config.training.step_timeout_s))[0]
        self.pool = RolloutPool(
            worker_settings(config, self.data, tuple(modules)),
            config.rollout.num_workers,
            config.rollout.rollout_max_concurrency,
            worker_options(config),
            self.sync,
            health,
            self.log.say,
        )
        async with self.log.while_busy(f"starting {config.rollout.num_workers} rollout worker(s)"):
            await self.pool.start()
        self.meter = SystemMeter(self.pool, self.learner)
        self.evaluation = EvaluationStage(config, self.pool, self.sync, self.report, self.tracker, self.log)
        self.log.say("rollout workers are ready")

    # -- asynchronous training -----------------------------------------------------------------------------------------

    async def _train(self) -> None:
        training = self.config.training
        assert self.pool is not None
        await self.meter.mark()
        self.generation = Generation(
            self.config,
            self.data.train_by_id,
            self.queue,
            self.pool,
            self.buffer,
            self.policy,
            self.limits,
            self.completed_steps,
            self.log,
            self.tracker,
        )
        self.generation.start()
        try:
            while self.completed_steps < training.max_steps:
                groups = await self.generation.next_groups()
                if groups is None:
                    self._say_all_epochs_are_over()
                    break
                await self._step(groups)
                if training.val_every and self.completed_steps % training.val_every == 0:
                    await self._validate()
                if training.save_every and self.completed_steps % training.save_every == 0:
                    await self._checkpoint()
                await self.meter.mark()
        finally:
            await self.generation.stop()
        if not training.save_every or self.completed_steps % training.save_every:
            await self._checkpoint()

    def _say_all_epochs_are_over(self) -> None:
        summary = self.ledger.summary()
        account = f"{summary['trained']} groups are trained, {summary['dropped']} dropped {summary['dropped_by_reason'] or ''}"
        if not self.completed_steps:
            raise LearnerError(
                f"All epochs ended without a step ({account.strip()}); are the tasks too easy, too hard, or the search service down?"
            )
        self.log.say(f"all epochs are over: {account.strip()}")

    async def _step(self, groups: dict[str, list[Trajectory]]) -> None:
        config = self.config
        started = time.monotonic()
        advantage = config.algorithm.advantage
        gaps = None
        if advantage.kl_beta:
            rows, _ = rows_of_groups(groups)
            gaps = await self.learner.reference_gaps(rows, config.training.step_timeout_s)
        batch = build_step_batch(groups, advantage.name, advantage_settings(config), self.completed_steps, gaps)
        update = await self.learner.update(batch.rows, update_settings(config), config.training.step_timeout_s)
        check_drift(update, config.learner.drift_alarm)
        self.completed_steps += 1
        for group_id in groups:
            self.ledger.train(group_id, self.completed_steps)
        self.generation.advance(self.completed_steps)
        note_progress(self.checkpoints, self.completed_steps)
        await self._publish()
        metrics = {**batch.metrics, **update, **(await self._system_metrics(started))}
        trained = [entry for entry in [*self.history, metrics] if entry["learner/tokens"]]
        entropies = [entry["learner/entropy"] for entry in trained]
        metrics |= self.alarms.after_step(groups, self.completed_steps, entropies)
        training = config.training
        metrics["training/global_step"] = float(self.completed_steps)
        metrics["training/epoch"] = self.ledger.num_settled / len(self.data.train)
        metrics["analysis/batch_completion_ratio"] = sum(map(len, groups.values())) / (
            training.global_batch_size * training.group_size
        )
        self.history.append({"step": self.completed_steps, **metrics})
        self.tracker.log_metrics(metrics, self.completed_steps)
        self.tracker.log_traces([t for group in groups.values() for t in group], self.completed_steps)
        self.log.emit("step", step=self.completed_steps, of=config.training.max_steps, metrics=metrics)

    async def _system_metrics(self, training_started: float) -> dict[str, float]:
        metrics = await self.meter.step_metrics(training_started)
        metrics["system/buffered_groups"] = float(await ask("The buffer", self.buffer.size.remote()))
        metrics["system/in_flight_groups"] = float(len(self.generation.in_flight))
        for reason, count in self.ledger.summary()["dropped_by_reason"].items():
            metrics[f"staleness/dropped/{reason}"] = float(count)
        return metrics

    def _rl_seconds(self) -> float:
        """Wall time of reinforcement learning so far, over all starts of the run."""
        return self.rl_seconds + (time.monotonic() - self.rl_started if self.rl_started is not None else 0.0)

    # -- evaluation, checkpoints, end ----------------------------------------------------------------------------------

    async def _validate(self) -> None:
        found = await self.evaluation.validate(self.data.validation, self.sequence, self.completed_steps)
        if found is not None and (not self.best or found["ndcg@10"] > self.best["ndcg@10"]):
            self.best = {"step": float(self.completed_steps), **found}
            await self._save_model("best", self.best)
        self.alarms.after_validation(self.history, self.completed_steps)

    async def _evaluate_test(self, name: str, step: int) -> None:
        await self.evaluation.test(name, self.data.test, self.sequence, self.completed_steps, step)

    async def _checkpoint(self) -> None:
        started = time.monotonic()
        folder = partial_folder(self.checkpoints, self.completed_steps)
        await self.learner.call("save", self.config.training.step_timeout_s, str(folder))
        state = RunState(
            completed_steps=self.completed_steps,
            queue=self.queue.state_dict(),
            history=self.history,
            rl_seconds=self._rl_seconds(),
            config=self.config.model_dump(mode="json"),
            data=self.data.identity,
        )
        keep = self.config.training.keep_checkpoints
        parts = self.config.learner.num_ranks if self.config.learner.zero_stage else 0
        # Apart, since a large one takes its time to reach the disk.
        await asyncio.to_thread(
            commit_checkpoint, self.checkpoints, self.completed_steps, state, keep, protect=(0,), optimizer_parts=parts
        )
        await ask("The buffer", self.buffer.checkpointed.remote())
        seconds = time.monotonic() - started
        self.tracker.log_metrics({"timing_s/save_checkpoint": seconds}, self.completed_steps)
        self.log.say(f"checkpoint of step {self.completed_steps} saved in {seconds:.1f} s")

    async def _save_model(self, name: str, validation: dict[str, Any] | None = None) -> None:
        partial = begin_model(self.output, name)
        await self.learner.call("save_hugging_face", self.config.training.step_timeout_s, str(partial))
        write_model_card(partial, self.config, self.completed_steps, self.report.as_json(), validation)
        folder = await asyncio.to_thread(commit_model, self.output, name, validation)
        self.log.say(f"the model is saved in {folder}")

    async def _control_arm(self) -> None:
        """Clones on the demonstrations for as long as RL took, from where RL started, and evaluates that."""
        self.trained_steps = self.completed_steps
        if self.report.restore("control", self.trained_steps):
            return
        folder = checkpoint_folder(self.checkpoints, 0)
        await self.learner.call("load", self.config.training.step_timeout_s, str(folder))
        self.log.say(f"control arm: cloning for {self.rl_seconds:.0f} s")
        made = await self._clone("control", seconds=self.rl_seconds)
        self.log.say(f"control arm: {made} steps")
        await self._publish()
        await self._evaluate_test("control", self.trained_steps)

    async def _close(self, status: Status) -> None:
        """Ends everything this run started; a part that cannot be ended is named and does not keep the others."""
        steps: list[tuple[str, Any]] = []
        if self.pool is not None:
            steps.append(("rollout workers", self.pool.close(CLOSE_TIMEOUT_S)))
        if hasattr(self, "learner"):
            steps.append(("learner", self.learner.close()))
        if hasattr(self, "sync"):
            steps.append(("weight sync", within(CLOSE_TIMEOUT_S, self.sync.close.remote())))
        steps.append(("search service", asyncio.to_thread(stop_search, search_app(self.config))))
        steps.append(("snapshots", asyncio.to_thread(remove_snapshots, self.config)))
        steps.append(("tracking", asyncio.to_thread(self.tracker.finish, status)))
        for (name, _), outcome in zip(
            steps, await asyncio.gather(*(step for _, step in steps), return_exceptions=True), strict=True
        ):
            if isinstance(outcome, BaseException):
                self.log.say(f"{name} could not be ended in order: {type(outcome).__name__}: {outcome}")
            elif name == "tracking" and outcome:
                self.log.say(f"warning: {outcome}")
