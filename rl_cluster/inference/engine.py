"""`InferenceEngine`: one vLLM engine that takes token ids, gives token ids, and changes its weights in mid-flight.

Invariants:
- every sampled token comes with the log-prob under the distribution it was sampled from and the weight version of its
  own sampling step;
- a result that was sampled wholly or partly by weights whose probe has not been verified is never handed out: between
  loading and verdict, finished requests wait at a gate, and a failed verdict raises EngineError in all of them;
- an engine whose update failed is `broken` and refuses every further call; the owner replaces it;
- with adapters (`adapter_rank`) an update pauses nothing: see adapters.py for what holds then.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rl_cluster.episodes.sampling import Sample, SamplingSettings
from rl_cluster.errors import DeadlineError, DigestMismatchError, EngineError, SupersededError, WeightSyncError
from rl_cluster.inference.adapters import MAX_ADAPTERS, Adapter, AdapterShelf
from rl_cluster.learning.weight_version import WeightVersion, verify_probe

TRANSFER_BACKEND = "rl_cluster_shared_memory"
"""The name that shared_memory_transfer.py registers itself under in vLLM's processes."""
DEVICE_BACKENDS = {"nccl": "rl_cluster_nccl", "ipc": "rl_cluster_ipc"}
"""The names of device_transfer.py's engines, by transport: weights go from GPU to GPU."""

Deliver = Callable[[], Awaitable[None]]
"""Makes the weights arrive, by way of the engine's `transfer`."""


@dataclass(frozen=True)
class EngineSettings:
    """How an engine is built. `kv_cache_gib` is memory for keys and values; lengths are tokens. `adapter_rank`: over 0, weights
    arrive as LoRA adapters of that rank on `adapter_modules` (names of linear layers) instead of whole models. `yields`: a CPU
    engine runs when nothing else wants the cores, which is for one that shares them with a learner."""

    model_path: str
    max_model_len: int
    dtype: str = "float32"
    device: str = "cpu"
    max_num_seqs: int = 32
    kv_cache_gib: float = 1.0
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.85
    enforce_eager: bool = True
    kv_on_update: str = "keep"
    probe_tolerance: float = 1e-3
    cpu_threads: int = 2
    seed: int = 0
    transport: str = "shared_memory"
    adapter_rank: int = 0
    adapter_modules: tuple[str, ...] = ()
    yields: bool = False


@dataclass
class EngineCounters:
    """Totals since the start; seconds where the name ends in _s."""

    requests: int = 0
    sampled_tokens: int = 0
    mixed_cache_tokens: int = 0
    updates: int = 0
    pause_s: float = 0.0
    load_s: float = 0.0
    max_probe_gap: float = 0.0
    busy_s: float = 0.0


@dataclass
class InferenceEngine:
    """Owns one AsyncLLM. Create with `await InferenceEngine.start(settings)`."""

    settings: EngineSettings
    llm: Any
    version: int = 0
    broken: str = ""
    counters: EngineCounters = field(default_factory=EngineCounters)

    def __post_init__(self) -> None:
        self._verified = asyncio.Event()
        self._verified.set()
        self._updating = asyncio.Lock()
        self._running = 0
        self._busy_since = 0.0
        self._loads = 0
        self._salt = "load-0"
        self._loading: int | None = None
        self._expected = 0
        self._paused_at = 0.0
        self.adapters = AdapterShelf(self.llm)
        self._proving: Adapter | None = None

    @classmethod
    async def start(cls, settings: EngineSettings, deadline_s: float = 300.0) -> InferenceEngine:
        """Starts the engine; raises EngineError when it fails, DeadlineError when it takes longer than `deadline_s`."""
        _prepare_process(settings)
        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        on_device = settings.transport in DEVICE_BACKENDS
        module = "device_transfer" if on_device else "shared_memory_transfer"
        arguments: dict[str, Any] = {
            "model": settings.model_path,
            "dtype": settings.dtype,
            "max_model_len": settings.max_model_len,
            "max_num_seqs": settings.max_num_seqs,
            "enforce_eager": settings.enforce_eager,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "seed": settings.seed,
            "trust_remote_code": False,
            "disable_log_stats": False,
            "weight_transfer_config": WeightTransferConfig(
                backend=DEVICE_BACKENDS.get(settings.transport, TRANSFER_BACKEND)
            ),
            "worker_extension_cls": f"rl_cluster.inference.{module}.WorkerExtension",
            "tensor_parallel_size": settings.tensor_parallel_size,
        }
        if settings.device == "cpu" and settings.tensor_parallel_size == 1:
            arguments["distributed_executor_backend"] = "uni"
        if settings.device == "cpu":
            arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * (1 << 30))
        else:
            arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
        if settings.adapter_rank:
            arguments.update(
                enable_lora=True,
                max_lora_rank=settings.adapter_rank,
                max_loras=MAX_ADAPTERS,
                # Without this vLLM wraps the head too, and a head so wrapped fails on prompt log-probs in a batch of
                # several requests, which the probe is.
                lora_target_modules=list(settings.adapter_modules),
            )

        def build() -> AsyncLLM:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

        try:
            # Built on the running loop's thread: AsyncLLM ties itself to the loop that it is made on.
            llm = build()
            engine = cls(settings=settings, llm=llm)
            async with asyncio.timeout(deadline_s):
                await engine._set_version(0)
        except TimeoutError as error:
            raise DeadlineError(
                f"The engine for {settings.model_path} was not ready within {deadline_s:.0f} s."
            ) from error
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"vLLM could not start {settings.model_path}: {error}") from error
        if not on_device and not settings.adapter_rank:  # on a device the learner begins, with the address to meet at
            await engine.transfer("init", {})
        return engine

    async def sample(self, prompt_ids: list[int], sampling: SamplingSettings, request_id: str | None = None) -> Sample:
        """Samples one continuation. Cancelling the awaiting task aborts the request in the engine.

        Raises EngineError when the engine is broken or fails while sampling.
        """
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        self._require_usable()
        params = SamplingParams(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            logprobs=0,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=sampling.ignore_eos,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # Keys and values of other weights must not be reused by a new request, hence the salt.
        salted_for = self.version if self._loading is None else self._loading
        prompt = TokensPrompt(prompt_token_ids=prompt_ids, cache_salt=self._salt)
        arrived = time.monotonic()
        adapter = self.adapters.acquire()
        self._enter()
        try:
            final = None
            request = adapter.request if adapter else None
            async for output in self.llm.generate(prompt, params, request_id or uuid.uuid4().hex, lora_request=request):
                final = output
        except (EngineDeadError, EngineGenerateError, RuntimeError, ValueError) as error:
            self._note_death(error)
            raise EngineError(f"vLLM failed while sampling: {error}") from error
        finally:
            self._leave()
            self.adapters.release(adapter)
        await self._verified.wait()
        self._require_usable()
        if final is None or not final.finished:
            raise EngineError("vLLM ended a request without a final output.")
        if final.outputs[0].finish_reason not in ("stop", "length"):
            raise EngineError(
                f"vLLM ended a request with {final.outputs[0].finish_reason!r} before its reply was whole."
            )
        return self._to_sample(final, arrived, salted_for, adapter)

    async def score(self, token_ids: list[int]) -> list[float]:
        """log p(token t | tokens before t) for t = 1..T-1 under the newest weights, temperature 1; during an update, those that
        are being proven."""
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=1.0,
            max_tokens=1,
            prompt_logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final = None
        prompt = TokensPrompt(prompt_token_ids=token_ids, cache_salt=f"probe-{uuid.uuid4().hex}")
        adapter = self._proving or self.adapters.current
        request = adapter.request if adapter else None
        async for output in self.llm.generate(prompt, params, f"probe-{uuid.uuid4().hex}", lora_request=request):
            final = output
        if final is None or final.prompt_logprobs is None:
            raise EngineError("vLLM gave no log-probs for the probe sequence.")
        return [
            float(entry[token].logprob) for token, entry in zip(token_ids[1:], final.prompt_logprobs[1:], strict=True)
        ]

    async def update(self, weights: WeightVersion, deliver: Deliver, deadline_s: float = 120.0) -> None:
        """Loads `weights`, which `deliver` brings, while requests stay in flight.

        Raises SupersededError when the weights are not to be had any more and nothing was touched; any other
        WeightSyncError leaves the engine broken, and it must be replaced.
        """
        async with self._updating:
            self._require_usable()
            try:
                async with asyncio.timeout(deadline_s):
                    await self._update(weights, deliver)
            except TimeoutError as error:
                self.broken = f"weight update {weights.version} did not end within {deadline_s:.0f} s"
                raise WeightSyncError(f"The {self.broken}; restart the engine.") from error
            except WeightSyncError as error:
                if not (isinstance(error, SupersededError) and self._loading is None):
                    self.broken = str(error)
                raise
            except Exception as error:
                # vLLM reports a failure in its worker processes as a plain Exception; whatever it was, the model may be
                # half loaded now.
                self.broken = str(error)
                kind = DigestMismatchError if " has digest " in str(error) else WeightSyncError
                raise kind(f"Loading weight version {weights.version} failed: {error}") from error
            finally:
                self._proving = None
                self._verified.set()

    async def transfer(self, step: str, payload: Any) -> None:
        """One step of vLLM's weight transfer: "init" (how to meet), "start", "update" (what comes), "finish" (version).

        Generation is paused from "start" on and resumed by `update`, which these steps belong to.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        if step == "init":
            await self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=payload))
        elif step == "start":
            await self._pause()
            await self.llm.start_weight_update()
        elif step == "update":
            await self.llm.update_weights(WeightTransferUpdateRequest(update_info=payload))
        elif step == "finish":
            await self.llm.finish_weight_update(weight_version=str(payload))
        else:
            raise WeightSyncError(f"{step!r} is no step of a weight transfer; known: init, start, update, finish.")

    async def deliver_file(self, weights: WeightVersion, path: str) -> None:
        """Brings `weights` from the snapshot at `path` on this host: a whole model, or an adapter where the engine takes them."""
        if bool(weights.adapter_config) != bool(self.settings.adapter_rank):
            expected = "an adapter" if self.settings.adapter_rank else "a whole model"
            raise WeightSyncError(
                f"Weight version {weights.version}: the engine takes {expected}, another kind arrived."
            )
        if weights.adapter_config:
            self._proving = await self.adapters.load(weights, path)
            return
        await self.transfer("start", None)
        await self.transfer("update", {"path": path, "digests": weights.digests})
        await self.transfer("finish", weights.version)

    async def _pause(self) -> None:
        started = time.monotonic()
        await self.llm.pause_generation(mode="keep", clear_cache=self.settings.kv_on_update == "recompute")
        self._verified.clear()
        # Requests that arrive from now on are scheduled after the update and must not reuse what came before it. The
        # salt counts loads, not versions: versions repeat when earlier weights are loaded again.
        self._loads += 1
        self._salt = f"load-{self._loads}"
        self._loading = self._expected
        self._paused_at = time.monotonic()
        self.counters.pause_s += self._paused_at - started

    async def _update(self, weights: WeightVersion, deliver: Deliver) -> None:
        self._expected = weights.version
        started = time.monotonic()
        await deliver()
        loaded = time.monotonic()
        if self._proving is not None:
            await self._prove(weights)
            self.adapters.adopt(self._proving)
            self.version = weights.version
            self.counters.load_s += loaded - started
        else:
            await self.llm.resume_generation()
            self.version = weights.version
            self._loading = None
            await self._prove(weights)
            self.counters.pause_s += loaded - self._paused_at
            self.counters.load_s += loaded - self._paused_at
        self.counters.updates += 1

    async def _prove(self, weights: WeightVersion) -> None:
        if weights.probe is None:
            return
        scored = await self.score(list(weights.probe.token_ids))
        gap = verify_probe(weights.probe, scored, self.settings.probe_tolerance)
        self.counters.max_probe_gap = max(self.counters.max_probe_gap, gap)

    async def close(self) -> None:
        """Ends the engine's processes."""
        self.broken = self.broken or "it was closed"
        settings = self.settings
        # A single process on a CPU holds memory alone, and vLLM would wait five seconds, on this loop, for it to end by itself.
        alone = settings.device == "cpu" and settings.tensor_parallel_size == 1
        self.llm.shutdown(timeout=0.0 if alone else None)
        self.adapters.close()
        # Its finaliser fails noisily where it is left to the end of the interpreter.
        self.llm = self.adapters.llm = None

    def busy_seconds(self) -> float:
        """Seconds in which at least one request was in the engine."""
        extra = time.monotonic() - self._busy_since if self._running else 0.0
        return self.counters.busy_s + extra

    def _to_sample(self, final: Any, arrived: float, salted_for: int, adapter: Adapter | None) -> Sample:
        completion = final.outputs[0]
        token_ids = [int(token) for token in completion.token_ids]
        logprobs = [float(entry[token].logprob) for token, entry in zip(token_ids, completion.logprobs, strict=True)]
        versions: list[int] = []
        if adapter is not None:
            versions, salted_for = [adapter.version] * len(token_ids), adapter.version
        else:
            for span in completion.weight_versions or []:
                versions.extend([int(span.version)] * (span.end - span.start))
        if len(versions) != len(token_ids):
            raise EngineError(f"vLLM reported weight versions for {len(versions)} of {len(token_ids)} sampled tokens.")
        # Where running requests are computed anew after an update, no token saw keys and values of other weights.
        recomputed = self.settings.kv_on_update == "recompute"
        mixed = 0 if recomputed else sum(version != salted_for for version in versions)
        self.counters.requests += 1
        self.counters.sampled_tokens += len(token_ids)
        self.counters.mixed_cache_tokens += mixed
        now = time.monotonic()
        stats = final.metrics
        queue_s = prefill_s = 0.0
        decode_s = now - arrived
        if stats is not None and stats.first_token_ts:
            queue_s = max(0.0, stats.scheduled_ts - stats.queued_ts)
            prefill_s = max(0.0, stats.first_token_ts - stats.scheduled_ts)
            decode_s = max(0.0, stats.last_token_ts - stats.first_token_ts)
        return Sample(token_ids, logprobs, versions, str(completion.finish_reason), queue_s, prefill_s, decode_s, mixed)

    async def _set_version(self, version: int) -> None:
        await self.llm.update_weight_version(str(version))
        self.version = version

    def _require_usable(self) -> None:
        if self.broken:
            raise EngineError(f"The engine is broken ({self.broken}); it must be restarted.")

    def _note_death(self, error: Exception) -> None:
        if getattr(self.llm, "errored", False):
            self.broken = str(error) or type(error).__name__

    def _enter(self) -> None:
        if self._running == 0:
            self._busy_since = time.monotonic()
        self._running += 1

    def _leave(self) -> None:
        self._running -= 1
        if self._running == 0:
            self.counters.busy_s += time.monotonic() - self._busy_since


def _prepare_process(settings: EngineSettings) -> None:
    """Prepares the process that makes the engine: what vLLM reads from its environment, and its place on shared cores."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if settings.device == "cpu":
        if settings.enforce_eager:
            # vLLM compiles a few small functions also then, which takes a C++ compiler and many seconds of the first
            # request, and makes none of the later ones quicker.
            os.environ["TORCH_COMPILE_DISABLE"] = "1"
        if settings.tensor_parallel_size == 1:
            # One process for scheduler and model: two of them pass work through a loop that spins, which on a small
            # machine takes half a core from the model.
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            os.environ["OMP_NUM_THREADS"] = str(settings.cpu_threads)
        if settings.yields and hasattr(os, "SCHED_IDLE"):
            # On shared cores two equal OpenMP programs wait for each other's descheduled threads at every barrier. The
            # engine therefore runs when the learner leaves a core, and is put aside at once when it wants it back.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
