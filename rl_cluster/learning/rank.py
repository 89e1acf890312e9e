"""`LearnerRank`: one DeepSpeed rank. Rows in, one optimiser step, metrics out; plus probe, export and checkpoint.

Invariants: all ranks are given the same rows and share them out by the same rule, so that they make the same number of
forward and backward passes; the loss is the sum of weight times term over the whole optimiser batch, so that it does
not depend on micro-batches or ranks; `completed_steps` counts RL steps only and is the version of the current weights.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_cluster.algorithms.aggregation import token_weights
from rl_cluster.algorithms.corrections import CorrectionSettings
from rl_cluster.algorithms.objective import ObjectiveSettings, objective
from rl_cluster.algorithms.types import LossInputs, LossSettings
from rl_cluster.errors import CheckpointError, DeadlineError, LearnerError
from rl_cluster.learning.checkpoint import check_learner_files
from rl_cluster.learning.episode_ratios import episode_log_ratios
from rl_cluster.learning.export import (
    adapter_config_json,
    adapter_modules,
    adapter_tensors,
    hugging_face_name,
    merged_tensors,
    write_hugging_face,
)
from rl_cluster.learning.loading import load_causal_model, load_policy
from rl_cluster.learning.policy import PolicyInputs, PolicyModule, empty_inputs, inputs_from_micro_batch
from rl_cluster.learning.reference import ReferencePolicy
from rl_cluster.learning.settings import LearnerSettings, UpdateSettings, learning_rate_factor
from rl_cluster.learning.update_metrics import UpdateSums
from rl_cluster.learning.weight_version import Probe, WeightVersion, tensor_digest
from rl_cluster.models.cpu_matmul import use_onednn_for_float32
from rl_cluster.models.parts import positions_of
from rl_cluster.sequences.batching import MicroBatch, micro_batches_of_ranks
from rl_cluster.sequences.row import TrainingRow


class LearnerRank:
    """Owns the DeepSpeed engine of one rank. Build it, then call `setup` on all ranks at once."""

    def __init__(self, settings: LearnerSettings, rank: int, world_size: int, master: tuple[str, int]) -> None:
        self.settings = settings
        self.rank = rank
        self.world_size = world_size
        self.master = master
        self.completed_steps = 0
        self.supervised_steps = 0
        self.engine: Any = None
        self.tokenizer: Any = None
        self.sender: Any = None
        self.reference: ReferencePolicy | None = None
        self.max_positions: int | None = None

    def setup(self) -> None:
        """Joins the other ranks and builds the model. Raises DeadlineError when a rank is missing."""
        settings = self.settings
        torch.manual_seed(settings.seed)
        if settings.device == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"
            torch.set_num_threads(settings.num_threads)
            use_onednn_for_float32()
        os.environ.update(
            MASTER_ADDR=self.master[0],
            MASTER_PORT=str(self.master[1]),
            RANK=str(self.rank),
            WORLD_SIZE=str(self.world_size),
            LOCAL_RANK="0",
        )
        import deepspeed

        if settings.device == "cpu":
            # DeepSpeed would compile a shared-memory all-reduce at every first start; gloo does without a compiler.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        backend = "gloo" if settings.device == "cpu" else "nccl"
        try:
            torch.distributed.init_process_group(
                backend,
                # One rank has nobody to meet and opens no port.
                store=torch.distributed.HashStore() if self.world_size == 1 else None,  # pyright: ignore[reportPrivateImportUsage]
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=settings.rendezvous_timeout_s),
            )
            deepspeed.init_distributed(backend)
        except (RuntimeError, ValueError) as error:
            raise DeadlineError(
                f"Learner rank {self.rank} of {self.world_size} could not meet the others at {self.master[0]}:"
                f"{self.master[1]} within {settings.rendezvous_timeout_s:.0f} s: {error}"
            ) from error
        model, self.tokenizer = load_policy(settings)
        self.max_positions = positions_of(model.config)
        policy = PolicyModule(model, settings.temperature, lockstep=settings.zero_stage == 3 and self.world_size > 1)
        trainable = [p for p in policy.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            trainable,
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        parameters: Any = trainable  # annotated as a module by DeepSpeed, documented as parameters
        self.engine, *_ = deepspeed.initialize(
            model=policy, model_parameters=parameters, optimizer=optimizer, config=self._deepspeed_config()
        )
        if self.world_size == 1 and settings.zero_stage == 0:
            # Alone, DeepSpeed would still copy all gradients into one buffer to reduce them.
            self.engine.enable_backward_allreduce = False
        self.engine.train()

    def _deepspeed_config(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": settings.grad_clip_norm,
            "zero_optimization": {"stage": settings.zero_stage},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": settings.dtype == "bfloat16"},
            # Micro-batches are summed in float32, whatever the model computes in.
            "data_types": {"grad_accum_dtype": "fp32"},
            "steps_per_print": 10**9,
        }

    def update(self, rows: Sequence[TrainingRow], update: UpdateSettings, supervised: bool = False) -> dict[str, float]:
        """One optimiser step on `rows` (the whole batch, the same on every rank); returns metrics of all ranks.

        Raises LearnerError when no token can be trained, a row is longer than the model's positions, or loss or gradient is not
        finite. The weights have not moved then, unless DeepSpeed's own optimiser was the first to know the gradient's norm.
        """
        started = time.monotonic()
        self._check_lengths(rows)
        goal = _objective(update)
        if goal.needs_reference and self.reference is None:
            raise LearnerError(f"loss={update.loss}, kl_coefficient={update.kl_coefficient}: set learner.reference.")
        weights = token_weights(
            update.aggregation,
            [row.turn_index[row.loss_mask] for row in rows],
            [row.trajectory_id for row in rows],
            update.max_episode_tokens,
        )
        weights_of = {id(row): each for row, each in zip(rows, weights, strict=True)}
        episodes = {name: index for index, name in enumerate(dict.fromkeys(row.trajectory_id for row in rows))}
        active, settings = _active_rows(rows, goal), self.settings
        # Without any signal the sampler is still compared with the learner, on what one round of micro-batches holds.
        seen = active or _sampled_by(self.completed_steps, rows, settings.micro_batch_tokens * self.world_size)
        shared = micro_batches_of_ranks(seen, settings.micro_batch_tokens, settings.share_prefix, self.world_size)
        mine, batches = shared[self.rank], [batch for share in shared for batch in share if batch is not None]
        sums = UpdateSums(current_version=self.completed_steps)
        self._set_learning_rate(supervised)
        passes = [
            empty_inputs()
            if batch is None
            else inputs_from_micro_batch(
                batch, [weights_of[id(row)] for row in batch.rows], [episodes[row.trajectory_id] for row in batch.rows]
            )
            for batch in mine
        ]
        passes = [inputs.to(self.engine.device) for inputs in passes]
        ratios = None
        if goal.needs_episode_ratio:
            device = self.engine.device
            ratios = episode_log_ratios(self.engine.module, passes, len(episodes), self.world_size, device)
        for index, (batch, inputs) in enumerate(zip(mine, passes, strict=True)):
            last, real = index == len(mine) - 1, batch is not None
            self._pass(inputs, goal, ratios, sums, last=last, real=real, learn=bool(active))
        metrics = self._reduce(sums)
        grad_norm = self._step(metrics["learner/loss"]) if active else 0.0
        if supervised:
            self.supervised_steps += 1
        else:
            self.completed_steps += 1
        metrics["learner/grad_norm"] = grad_norm
        metrics["learner/learning_rate"] = self._current_rate
        metrics["learner/micro_batches"] = float(len(batches))
        metrics["learner/positions"] = float(sum(batch.cost for batch in batches))
        metrics["learner/skipped_rows"] = float(len(rows) - len(active))
        metrics["timing_s/policy_update"] = time.monotonic() - started
        return metrics

    def _check_lengths(self, rows: Sequence[TrainingRow]) -> None:
        limit = self.max_positions
        long = next((row for row in rows if limit is not None and len(row) > limit), None)
        if long is not None:
            raise LearnerError(
                f"Trajectory {long.trajectory_id} has a row of {len(long)} tokens, but the model has {limit} positions; lower "
                "rollout.max_sequence_length."
            )

    def _pass(
        self,
        inputs: PolicyInputs,
        goal: ObjectiveSettings,
        ratios: tuple[torch.Tensor, torch.Tensor] | None,
        sums: UpdateSums,
        last: bool,
        real: bool,
        learn: bool,
    ) -> None:
        """One micro-batch through the model, with its gradient where `learn` says so."""
        if learn:
            self.engine.set_gradient_accumulation_boundary(last)
            logprobs, entropy = self.engine(inputs, entropy_gradient=goal.entropy_coefficient > 0)
        else:
            with torch.no_grad():
                logprobs, entropy = self.engine.module(inputs)
        per_token = [None, None] if ratios is None else [r.to(logprobs)[inputs.episodes] for r in ratios]
        found = objective(
            LossInputs(
                logprobs,
                inputs.behaviour_logprobs,
                inputs.advantages,
                episode_log_ratio=per_token[0],
                reference_logprobs=self.reference.logprobs(inputs) if self.reference is not None else None,
            ),
            goal,
            entropy,
            per_token[1],
        )
        loss = (inputs.weights * found.terms).sum()
        if learn:
            # DeepSpeed averages gradients over ranks; the sum over the whole batch is wanted.
            self.engine.backward(loss * self.world_size)
        if real:
            sums.add(inputs, logprobs.detach(), entropy.detach(), found, float(loss.detach()))

    def _step(self, loss: float) -> float:
        """One step of the optimiser; returns the norm of the gradient before it was clipped.

        Raises LearnerError when loss or norm is not finite: before the weights move, except where DeepSpeed's own
        optimiser is the first to know the norm.
        """
        # DeepSpeed's own optimisers know the norm; without them (stage 0 in float32) it is lost by the step.
        gradients = [p.grad for p in self.engine.module.parameters() if p.grad is not None]
        own = self.settings.zero_stage == 0 and self.settings.dtype == "float32"
        norm = torch.nn.utils.get_total_norm(gradients) if own else None
        self._check_finite(loss, 0.0 if norm is None else float(norm))
        self.engine.step()
        norm = self.engine.get_global_grad_norm() if norm is None else norm
        found = float(norm) if norm is not None else 0.0
        self._check_finite(loss, found)
        return found

    def _check_finite(self, loss: float, norm: float) -> None:
        if not np.isfinite(loss) or not np.isfinite(norm):
            raise LearnerError(
                f"Step {self.completed_steps + 1}: loss {loss} with gradient norm {norm} is not finite; lower "
                "learner.learning_rate or resume from the last checkpoint."
            )

    def _reduce(self, sums: UpdateSums) -> dict[str, float]:
        totals, maxima = sums.as_tensors()
        if self.world_size > 1:
            # NCCL reduces on devices only.
            totals, maxima = totals.to(self.engine.device), maxima.to(self.engine.device)
            torch.distributed.all_reduce(totals)
            torch.distributed.all_reduce(maxima, op=torch.distributed.ReduceOp.MAX)
            totals, maxima = totals.cpu(), maxima.cpu()
        return UpdateSums.metrics(totals, maxima)

    def _set_learning_rate(self, supervised: bool) -> None:
        settings = self.settings
        step, base = self.completed_steps, settings.learning_rate
        factor = learning_rate_factor(settings.schedule, step, settings.total_steps, settings.lr_warmup_steps)
        if supervised:
            base, factor = self._supervised_rate, 1.0
        self._current_rate = base * factor
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self._current_rate

    _supervised_rate = 0.0
    _current_rate = 0.0

    def begin_supervised(self, learning_rate: float) -> None:
        """Sets the constant learning rate of supervised updates."""
        self._supervised_rate = learning_rate

    def reset_optimizer(self) -> None:
        """Forgets the optimiser's moments, which belong to another loss after the warm-up."""
        inner = getattr(self.engine.optimizer, "optimizer", self.engine.optimizer)
        inner.state.clear()

    def set_reference(self, folder: str) -> None:
        """Loads the frozen model that objectives with a divergence or a teacher need."""
        self.reference = ReferencePolicy(load_causal_model, folder, self.settings.temperature, self.engine.device)

    def reference_gaps(self, rows: Sequence[TrainingRow]) -> dict[int, np.ndarray]:
        """lb - lr of the trained tokens of this rank's share of `rows`, by the row's index: k1 as a part of the reward."""
        if self.reference is None:
            raise LearnerError("algorithm.advantage.kl_beta needs learner.reference.")
        gaps: dict[int, np.ndarray] = {}
        batches = [MicroBatch([row], 0) for row in rows]
        for index in range(self.rank, len(rows), self.world_size):
            if rows[index].num_trained:
                inputs = inputs_from_micro_batch(batches[index], [np.ones(batches[index].rows[0].num_trained)], [0]).to(
                    self.engine.device
                )
                gap = inputs.behaviour_logprobs - self.reference.logprobs(inputs)
                gaps[index] = torch.nan_to_num(gap).double().cpu().numpy()
        return gaps

    def probe(self, token_ids: Sequence[int]) -> Probe:
        """The current weights' log-probs of a fixed sequence, temperature 1. All ranks call it together."""
        ids = torch.tensor([list(token_ids)], device=self.engine.device)
        count = ids.shape[1] - 1
        zeros = torch.zeros(count, device=self.engine.device)
        inputs = PolicyInputs(
            prefix_ids=ids[0, :0],
            suffix_ids=ids,
            positions=torch.arange(count, device=ids.device),
            target_ids=ids[0, 1:],
            token_of=torch.arange(count, device=ids.device),
            behaviour_logprobs=zeros,
            advantages=zeros,
            weights=zeros,
            versions=torch.zeros(count, dtype=torch.long, device=ids.device),
            episodes=torch.zeros(count, dtype=torch.long, device=ids.device),
        )
        self.engine.eval()
        with torch.no_grad():
            logprobs, _ = self.engine.module(inputs, temperature=1.0)
        self.engine.train()
        return Probe(tuple(int(t) for t in token_ids), tuple(float(v) for v in logprobs.cpu()))

    def publish(self, path: str, probe_ids: Sequence[int], node_id: str) -> WeightVersion | None:
        """Writes a snapshot of the current weights, or of the adapters alone where those are synchronised; rank 0 returns its
        manifest, the others None."""
        from safetensors.torch import save_file

        probe = self.probe(probe_ids)
        model, lora, adapter_config = self.engine.module.model, self.settings.lora, ""
        if lora.rank and lora.sync == "adapter":
            tensors, adapter_config = adapter_tensors(model, self.settings.zero_stage), adapter_config_json(model)
        else:
            tensors = dict(merged_tensors(model, self.settings.zero_stage))
        if self.rank != 0:
            return None
        digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_suffix(".partial")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(scratch))
        scratch.rename(target)
        size = target.stat().st_size
        return WeightVersion(self.completed_steps, path, node_id, size, digests, probe, adapter_config)

    def publish_on_device(
        self, sequence: int, probe_ids: Sequence[int], node_id: str, transport: str
    ) -> WeightVersion | None:
        """Keeps a copy of the current weights on the device for `send`; rank 0 returns its manifest, the others None."""
        from rl_cluster.learning.device_sender import DeviceSender

        probe = self.probe(probe_ids)
        # Ranks other than the first only join the gathering; what they gather goes to host memory and away.
        device = None if self.rank == 0 else "cpu"
        tensors = dict(merged_tensors(self.engine.module.model, self.settings.zero_stage, device))
        if self.rank != 0:
            return None
        if self.sender is None:
            self.sender = DeviceSender(transport, self.master[0])
        snapshot = self.sender.freeze(sequence, tensors)
        return WeightVersion(self.completed_steps, "", node_id, snapshot.num_bytes, snapshot.digests, probe)

    def save_hugging_face(self, folder: str) -> None:
        """Writes the merged model as a plain Hugging Face folder (safetensors, tokenizer, chat template).

        With LoRA the adapters alone are written too, as peft reads them, below `adapter`.
        """
        tensors = dict(merged_tensors(self.engine.module.model, self.settings.zero_stage))
        adapters = {}
        if self.settings.lora.rank:
            adapters = adapter_tensors(self.engine.module.model, self.settings.zero_stage)
        if self.rank == 0:
            write_hugging_face(folder, self.engine.module.model, self.tokenizer, tensors, adapters)

    def leave_mark(self, folder: str) -> None:
        """A file `rank-N` in a folder, by which another node sees that it shares it."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"rank-{self.rank}").touch()

    def save(self, folder: str) -> None:
        """Writes model, optimiser and counters of this rank below `folder`; all ranks call it together."""
        state = {
            "completed_steps": self.completed_steps,
            "supervised_steps": self.supervised_steps,
            "torch_rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.settings.device == "cuda" else None,
            "settings": asdict(self.settings),
        }
        self.engine.save_checkpoint(folder, tag="learner", client_state=state, save_latest=False)

    def load(self, folder: str) -> int:
        """Restores what `save` wrote; returns the completed steps. Raises CheckpointError when it does not fit."""
        check_learner_files(Path(folder))
        try:
            path, state = self.engine.load_checkpoint(folder, tag="learner")
        except (AssertionError, KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(
                f"{folder}/learner does not fit the job ({reason}); set model and learner as they were, or remove {folder}, if it "
                "is damaged, to resume from the one before."
            ) from error
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"{folder}/learner cannot be read ({error}); remove {folder} to resume from the one before."
            ) from error
        if path is None:
            raise CheckpointError(f"{folder}/learner lacks a file; remove {folder} to resume from the one before.")
        if state["settings"]["model_path"] != self.settings.model_path:
            raise CheckpointError(
                f"{folder} was made from model {state['settings']['model_path']}, the job asks for "
                f"{self.settings.model_path}; set model.name to the former."
            )
        self.completed_steps = int(state["completed_steps"])
        self.supervised_steps = int(state["supervised_steps"])
        torch.set_rng_state(state["torch_rng"])
        if state["cuda_rng"] is not None and self.settings.device == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"])
        return self.completed_steps

    def adapter_modules(self) -> list[str]:
        """See rl_cluster.learning.export.adapter_modules."""
        return adapter_modules(self.engine.module.model)

    def parameter_names(self) -> list[str]:
        """Hugging Face names of all trained tensors."""
        return [hugging_face_name(n) for n, p in self.engine.module.model.named_parameters() if p.requires_grad]


def _objective(update: UpdateSettings) -> ObjectiveSettings:
    kind: Any = update.correction_kind
    level: Any = update.correction_level
    estimator: Any = update.kl_estimator
    return ObjectiveSettings(
        loss=update.loss,
        bounds=LossSettings(update.clip_low, update.clip_high, update.dual_clip),
        correction=CorrectionSettings(kind, level, update.correction_low, update.correction_high),
        kl_coefficient=update.kl_coefficient,
        kl_estimator=estimator,
        entropy_coefficient=update.entropy_coefficient,
    )


def _active_rows(rows: Sequence[TrainingRow], goal: ObjectiveSettings) -> list[TrainingRow]:
    """The rows that must go through the model; the others count in the normaliser only.

    Without advantage a row has no gradient, unless the objective holds it to a reference or rewards its entropy; where
    the ratio of a whole episode matters, all its rows are needed.
    """
    trained = [row for row in rows if row.num_trained]
    if goal.needs_reference or goal.entropy_coefficient:
        return trained
    moved = {row.trajectory_id for row in trained if np.any(row.advantages)}
    if goal.needs_episode_ratio:
        return [row for row in trained if row.trajectory_id in moved]
    return [row for row in trained if np.any(row.advantages)]


def _sampled_by(version: int, rows: Sequence[TrainingRow], max_tokens: int) -> list[TrainingRow]:
    """The first rows with trained tokens that these weights sampled, as many as `max_tokens` hold, at least one if there is one."""
    found: list[TrainingRow] = []
    for row in rows:
        own = row.num_trained and np.any(row.weight_versions[row.loss_mask] == version)
        if own and (not found or sum(map(len, found)) + len(row) <= max_tokens):
            found.append(row)
    return found
