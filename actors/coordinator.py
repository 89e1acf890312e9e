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

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.alarm_stage import AlarmStage
from actors.evaluation_stage import EvaluationStage
from actors.event_log import EventLog
from actors.learner import LearnerGroup
from actors.remote import actor, within
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
from actors.system_meter import SystemMeter
from actors.trajectory_buffer import TrajectoryBuffer
from actors.warmup import clone, demonstration_rows
from actors.weight_sync import WeightSync
from rl_cluster.config import Config
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import CheckpointError, DropReason, LearnerError
from rl_cluster.inference.engine import DEVICE_BACKENDS
from rl_cluster.learning.batch import build_step_batch, rows_of_groups
from rl_cluster.learning.checkpoint import (
    checkpoint_folder,
    checkpoint_steps,
    commit_checkpoint,
    partial_folder,
    read_state,
)
from rl_cluster.learning.drift_alarm import check_drift
from rl_cluster.learning.model_card import write_model_card
from rl_cluster.models.source import resolve_model
from rl_cluster.scheduling.curriculum import Curriculum
from rl_cluster.scheduling.ledger import TaskLedger, Ticket
from rl_cluster.scheduling.staleness import StalenessPolicy
from rl_cluster.scheduling.task_queue import TaskQueue
from rl_cluster.scheduling.worker_health import HealthPolicy
from rl_cluster.tracking.report import RunReport
from rl_cluster.tracking.run_tracker import RunTracker, Status

POLL_S = 1.0
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
        self.best: dict[str, float] = {}
        self.rl_seconds = 0.0
        self.rl_started: float | None = None
        self.trained_steps = 0
        self.crash: BaseException | None = None
        self.in_flight: dict[str, int] = {}
        self.group_tasks: set[asyncio.Task[None]] = set()
        self.wake = asyncio.Event()
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
        self.tracker = RunTracker(self.config, self.output)
        self.report = RunReport(self.config, self.output)
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
        self.log.say("preparing documents and index")
        learner = config.learner
        model_path = await asyncio.to_thread(resolve_model, config.model.name)
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
        self.clients = open_search(search_access(config))
        strategy = NodeAffinitySchedulingStrategy(self.learner.node_id, soft=False)
        self.sync = WeightSync.options(scheduling_strategy=strategy).remote()
        policy = StalenessPolicy(config.staleness.max_steps_off_policy, config.training.global_batch_size)
        self.policy = policy
        remove_snapshots(config)
        self.buffer = TrajectoryBuffer.remote(str(self.output / "journal.bin"), policy)
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
        steps = checkpoint_steps(self.checkpoints) if config.resume == "auto" else []
        self.ledger = TaskLedger(task_ids, config.seed, training.max_epochs)
        curriculum = Curriculum(config.seed) if training.curriculum == "difficulty" else None
        self.queue = TaskQueue(self.ledger, curriculum, training.drop_groups_without_signal)
        if steps:
            folder = checkpoint_folder(self.checkpoints, steps[-1])
            state = read_state(folder)
            self.queue.load_state_dict(state["queue"], task_ids, training.max_epochs)
            self.ledger = self.queue.ledger
            await self.learner.call("load", training.step_timeout_s, str(folder))
            self.completed_steps, self.history = state["completed_steps"], state["history"]
            self.best, self.rl_seconds = state["best"], state["rl_seconds"]
            kept = await self.buffer.restore.remote(self.ledger.returned_ids(), self.completed_steps)
            for ticket in self.ledger.claim(kept):
                self.ledger.finish(ticket.group_id)
            self.log.say(f"resumed at step {self.completed_steps} from {folder}; {len(kept)} finished groups kept")
            return
        await self.buffer.restore.remote([], 0)
        if config.warmup.enabled and config.warmup.steps:
            await self._clone("warm-up", steps=config.warmup.steps)
            await self.learner.call("reset_optimizer", training.step_timeout_s)
        await self._checkpoint()

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
            await self.sync.publish.remote(weights, self.learner.ranks[0])
            return
        name = f"{self.data.run_id}-{self.sequence:06d}.safetensors"
        path = str(Path(config.weight_sync.folder) / name)
        weights = await self.learner.publish(path, self.data.probe_ids, config.weight_sync.timeout_s)
        await self.sync.publish.remote(weights)

    async def _start_workers(self) -> None:
        config = self.config
        self.log.say(f"starting {config.rollout.num_workers} rollout worker(s)")
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
        await self.pool.start()
        self.meter = SystemMeter(self.pool, self.learner)
        self.evaluation = EvaluationStage(config, self.pool, self.sync, self.report, self.tracker, self.log)
        self.log.say("rollout workers are ready")

    # -- asynchronous training -----------------------------------------------------------------------------------------

    async def _train(self) -> None:
        training = self.config.training
        await self.meter.mark()
        generating = asyncio.create_task(self._generate())
        try:
            while self.completed_steps < training.max_steps:
                groups = await self._next_groups(generating)
                if groups is None:
                    if not self.completed_steps:
                        dropped = self.ledger.summary()["dropped_by_reason"]
                        raise LearnerError(
                            f"All epochs ended without a step, since every group was dropped ({dropped}); are the tasks too easy, too hard, "
                            "or the search service down?"
                        )
                    self.log.say("all epochs are trained")
                    break
                await self._step(groups)
                if training.val_every and self.completed_steps % training.val_every == 0:
                    await self._validate()
                if training.save_every and self.completed_steps % training.save_every == 0:
                    await self._checkpoint()
                await self.meter.mark()
        finally:
            generating.cancel()
            for task in list(self.group_tasks):
                task.cancel()
            await asyncio.gather(generating, *self.group_tasks, return_exceptions=True)
        if not training.save_every or self.completed_steps % training.save_every:
            await self._checkpoint()

    async def _generate(self) -> None:
        """Starts groups as fast as the staleness bound and the workers allow."""
        assert self.pool is not None
        size = self.config.training.group_size
        while True:
            self.wake.clear()
            last_useful = self.config.training.max_steps * self.config.training.global_batch_size
            synced = self.pool.oldest_version()
            if synced is not None:
                open_groups = self.ledger.num_open
                useful = last_useful - self.completed_steps * self.config.training.global_batch_size - open_groups
                allowed = self.policy.admissible(self.completed_steps, open_groups, min(synced, self.completed_steps))
                for ticket in self.queue.take(min(allowed, self.pool.room(size), max(0, useful))):
                    self.in_flight[ticket.group_id] = min(synced, self.completed_steps)
                    task = asyncio.create_task(self._play(ticket))
                    self.group_tasks.add(task)
                    task.add_done_callback(self._played)
                    await asyncio.sleep(0)  # lets the pool count the group before the next is considered
            try:
                await within(POLL_S, self.wake.wait())
            except TimeoutError:
                await self.pool.refresh()

    def _played(self, task: asyncio.Task[None]) -> None:
        self.group_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash = self.crash or error

    async def _play(self, ticket: Ticket) -> None:
        assert self.pool is not None
        group_id, task = ticket.group_id, self.data.train_by_id[ticket.task_id]
        try:
            group = await self.pool.run_group(group_id, task, self.config.training.group_size, self.limits)
            usable = [trajectory for trajectory in group if not trajectory.outcome.is_infrastructure_failure]
            lost = [trajectory.outcome.value for trajectory in group if trajectory.outcome.is_infrastructure_failure]
            rewards: list[Any] = [trajectory.reward for trajectory in usable]  # never None: these were played to an end
            for outcome in lost:
                self.tracker.count(f"infrastructure/{outcome}")
            if len(usable) < 2 or not any(trajectory.num_sampled for trajectory in usable):
                self.ledger.drop(group_id, DropReason.INFRASTRUCTURE)
                self.log.say(f"group {group_id} is dropped: {', '.join(sorted(set(lost)))}: {group[0].error}")
            elif not self.queue.is_worth_training(ticket, rewards):
                self.ledger.drop(group_id, DropReason.NO_SIGNAL)
            else:
                await self.buffer.put.remote(group_id, usable)
                self.ledger.finish(group_id)
        finally:
            self.in_flight.pop(group_id, None)
            self.wake.set()

    async def _next_groups(self, generating: asyncio.Task[None]) -> dict[str, list[Trajectory]] | None:
        """The groups of the next step; None when there will be no more."""
        training, policy = self.config.training, self.policy
        started = time.monotonic()
        while True:
            if generating.done():
                generating.result()
            assert self.pool is not None
            if (error := self.crash or self.pool.failure) is not None:
                raise error
            for group_id, age in (await self.buffer.sweep.remote(self.completed_steps)).items():
                self.ledger.drop(group_id, DropReason.STALE)
                self.log.say(f"group {group_id} is dropped: age {age} is over staleness.max_steps_off_policy")
            last_chance = self.completed_steps - policy.max_steps_off_policy
            urgent = [group_id for group_id, version in self.in_flight.items() if version <= last_chance]
            patient = time.monotonic() - started < training.straggler_timeout_s
            # Asked in this order: what is put in between is then counted.
            finished = not self.in_flight and not self.ledger.summary()["pending"]
            ready = await self.buffer.size.remote()
            count = min(training.global_batch_size, ready) if finished else training.global_batch_size
            if finished and not ready:
                return None
            if ready >= count and not (urgent and patient):
                return await self.buffer.take.remote(count, self.completed_steps)
            await asyncio.sleep(0.2)

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
        await self._publish()
        metrics = {**batch.metrics, **update, **(await self._system_metrics(started))}
        metrics |= self.alarms.after_step(groups, self.completed_steps)
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
        self.wake.set()

    async def _system_metrics(self, training_started: float) -> dict[str, float]:
        metrics = await self.meter.step_metrics(training_started)
        metrics["system/buffered_groups"] = float(await self.buffer.size.remote())
        metrics["system/in_flight_groups"] = float(len(self.in_flight))
        for reason, count in self.ledger.summary()["dropped_by_reason"].items():
            metrics[f"staleness/dropped/{reason}"] = float(count)
        return metrics

    def _rl_seconds(self) -> float:
        """Wall time of reinforcement learning so far, over all starts of the run."""
        return self.rl_seconds + (time.monotonic() - self.rl_started if self.rl_started is not None else 0.0)

    # -- evaluation, checkpoints, end ----------------------------------------------------------------------------------

    async def _validate(self) -> None:
        score = await self.evaluation.validate(self.data.validation, self.sequence, self.completed_steps)
        if score is not None and (not self.best or score > self.best["ndcg@10"]):
            self.best = {"step": float(self.completed_steps), "ndcg@10": score}
            await self._save_model("best")

        self.alarms.after_validation(self.history, self.completed_steps)

    async def _evaluate_test(self, name: str, step: int) -> None:
        await self.evaluation.test(name, self.data.test, self.sequence, self.completed_steps, step)

    async def _checkpoint(self) -> None:
        started = time.monotonic()
        folder = partial_folder(self.checkpoints, self.completed_steps)
        await self.learner.call("save", self.config.training.step_timeout_s, str(folder))
        state = {
            "completed_steps": self.completed_steps,
            "queue": self.queue.state_dict(),
            "history": self.history,
            "best": self.best,
            "rl_seconds": self._rl_seconds(),
            "config": self.config.model_dump(mode="json"),
        }
        keep = self.config.training.keep_checkpoints
        commit_checkpoint(self.checkpoints, self.completed_steps, state, keep, protect=(0,))
        await self.buffer.checkpointed.remote()
        seconds = time.monotonic() - started
        self.tracker.log_metrics({"timing_s/save_checkpoint": seconds}, self.completed_steps)
        self.log.say(f"checkpoint of step {self.completed_steps} saved in {seconds:.1f} s")

    async def _save_model(self, name: str) -> None:
        folder = self.output / name
        folder.mkdir(parents=True, exist_ok=True)
        await self.learner.call("save_hugging_face", self.config.training.step_timeout_s, str(folder))
        write_model_card(folder, self.config, self.completed_steps, self.report.as_json())
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
