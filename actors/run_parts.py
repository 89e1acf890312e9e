"""What a configuration means for each part of a run: the settings of learner, workers and search service."""

from __future__ import annotations

import asyncio
import hashlib
import platform
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from actors.index_builder import BuiltIndex, build_index, build_options
from actors.remote import is_loss, value_of, within
from actors.rollout_worker import TRANSFER_GROUP, WorkerSettings
from actors.search_client import SearchAccess
from actors.search_service import start_search
from rl_cluster.algorithms.losses import get_loss
from rl_cluster.algorithms.types import AdvantageSettings
from rl_cluster.config import Config
from rl_cluster.config_rollout import RolloutConfig
from rl_cluster.datasets.sampling import some_tasks
from rl_cluster.datasets.source import prepare_data
from rl_cluster.datasets.tables import read_tasks
from rl_cluster.datasets.task import Task, digest_of
from rl_cluster.environments.search import SearchEnvironmentSettings, system_prompt
from rl_cluster.episodes.episode import EpisodeLimits
from rl_cluster.episodes.formats import get_format
from rl_cluster.errors import ClusterError, DataError, DeadlineError, first_line
from rl_cluster.inference.engine import DEVICE_BACKENDS, EngineSettings
from rl_cluster.learning.checkpoint import TASKS
from rl_cluster.learning.settings import LearnerSettings, LoraSettings, UpdateSettings
from rl_cluster.service.http_search import HttpSearchClient, endpoint_id, http_search_settings, try_tool
from rl_cluster.service.settings import service_settings
from rl_cluster.service.values import SEARCH_TOOLS, http_address, index_name, open_parts

PROBE_TOKENS = 48
PROBE_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest accepted difference of a probe log-prob; an engine in bfloat16 differs by 0.22 at most where it was measured."""
SPLITS = ("train", "validation", "test")


@dataclass
class RunData:
    """Everything a run reads: tasks by split, the content ids of the indexes by corpus, the model's folder."""

    run_id: str
    model_path: str
    index_ids: dict[str, str]
    search_summary: str
    train: list[Task]
    validation: list[Task]
    test: list[Task]
    probe_ids: list[int]
    identity: dict[str, str]
    """The content of the tasks of all splits and of the indexes; a run can only be resumed on the same."""
    train_by_id: dict[str, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.train_by_id = {task.task_id: task for task in self.train}


def run_id(config: Config) -> str:
    """The run's name as a part of file names and URLs; its folder tells it from another run of the same name."""
    folder = str(Path(config.output_dir).resolve())
    digest = hashlib.sha256(folder.encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '-', config.run_name)}-{digest}"


def search_app(config: Config) -> str:
    """The name of this run's Serve application."""
    return f"search-{run_id(config)}"


def search_access(config: Config) -> SearchAccess:
    """How the processes of this run reach its search."""
    return SearchAccess(search_app(config), config.search, config.environment.tools)


def remove_snapshots(config: Config) -> None:
    """Removes weight snapshots of this run from this host, also those that a crash left."""
    for path in Path(config.weight_sync.folder).glob(f"{run_id(config)}-[0-9]*"):
        path.unlink(missing_ok=True)


async def prepare_search(config: Config, model_path: str) -> RunData:
    """Reads the tasks, and starts the search service over their documents, or tries the endpoint that is used instead."""
    folder = await asyncio.to_thread(prepare_data, config.data)
    tasks = {split: read_tasks(folder / "tasks.parquet", split, config.data.name) for split in SPLITS}
    locales: dict[str, set[str]] = {}
    for task in (task for split in tasks.values() for task in split):
        locales.setdefault(task.corpus, set()).add(task.locale)
    if config.search.external is None:
        index_ids, summary = await _serve_corpora(config, folder, locales)
    else:
        identity, summary = await _try_endpoint(config)
        index_ids = dict.fromkeys(locales, identity)
    return RunData(
        run_id=run_id(config),
        model_path=model_path,
        index_ids=index_ids,
        search_summary=summary,
        train=tasks["train"],
        validation=tasks["validation"],
        test=some_tasks(tasks["test"], config.evaluation.test_limit),
        probe_ids=await asyncio.to_thread(_probe_ids, config, model_path),
        identity={TASKS: digest_of(task for split in SPLITS for task in tasks[split])}
        | {f"the index of {corpus}": identity for corpus, identity in index_ids.items()},
    )


async def _serve_corpora(config: Config, folder: Path, locales: dict[str, set[str]]) -> tuple[dict[str, str], str]:
    """Builds or opens the index of every corpus and deploys the service; content ids by corpus, and a sentence for people."""
    app, search = search_app(config), config.search
    built = {corpus: await _build(config, folder, corpus, sorted(locales[corpus])) for corpus in sorted(locales)}
    folders = {index_name(corpus): index.folder for corpus, index in built.items()}
    index_ids = {corpus: index.index_id for corpus, index in built.items()}
    total = sum(index.num_documents for index in built.values())
    tools = environment_settings(config).tool_settings
    await asyncio.to_thread(start_search, folders, app, service_settings(search, tools))
    address = f"{http_address(search.host, search.port)}/{app}/v1/search"
    ids = ", ".join(identity[:12] for identity in index_ids.values())
    what = f"{total} documents, index {ids}" if len(index_ids) == 1 else f"{total} documents, {len(index_ids)} indexes"
    warnings = "".join(f"\nwarning: {index.warning}" for index in built.values() if index.warning)
    return index_ids, f"search service is up: {what}, {address}{warnings}"


async def _build(config: Config, folder: Path, corpus: str, locales: list[str]) -> BuiltIndex:
    """The index of one corpus."""
    search, parts = config.search, open_parts(config.environment.tools)
    path = str(folder / "corpus.parquet")
    built = build_index.options(**build_options(search, parts)).remote(
        path, corpus, search.model_dump(), locales, parts
    )
    try:
        return await within(search.build_timeout_s, value_of(built))
    except RayError as error:
        if not is_loss(error):
            raise
        raise ClusterError(
            f"The process that built the index of {corpus} died ({first_line(error)}), most likely for lack of memory; give its node more, "
            "or set search/vector=ivf_pq."
        ) from error
    except TimeoutError as error:
        raise DeadlineError(
            f"The index of {corpus} was not built within search.build_timeout_s={search.build_timeout_s:.0f} s; raise it, or "
            "lower search.embed_max_tokens."
        ) from error


async def _try_endpoint(config: Config) -> tuple[str, str]:
    """Asks the endpoint one question with each tool, so that a wrong setting ends the run before it begins."""
    search = config.search
    assert search.external is not None
    client = HttpSearchClient(http_search_settings(search))
    try:
        for tool in config.environment.tools:
            if tool in SEARCH_TOOLS:
                await try_tool(client, tool)
    finally:
        await client.close()
    identity = endpoint_id(search)
    return identity, f"search endpoint answers: {search.external.url}, recorded as {identity}"


def _probe_ids(config: Config, model_path: str) -> list[int]:
    """A fixed sequence from the model's own tokenizer, on which engine and learner are compared after every sync."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
    text = (
        system_prompt(environment_settings(config), get_format("plain")) + " bm25_search: 0123456789 answer: d1 d2 d3"
    )
    ids = list(tokenizer.encode(text, add_special_tokens=False))[:PROBE_TOKENS]
    if len(ids) < 2:
        raise DataError(
            f"model.name={config.model.name}: its tokenizer gives {len(ids)} tokens for a sentence; check it."
        )
    return ids


def environment_settings(config: Config) -> SearchEnvironmentSettings:
    environment = config.environment
    return SearchEnvironmentSettings(
        environment.max_turns, environment.k, environment.max_k, environment.tools, environment.filter_fields
    )


def episode_limits(config: Config, temperature: float) -> EpisodeLimits:
    rollout = config.rollout
    return EpisodeLimits(rollout.sampling_max_tokens, rollout.max_sequence_length, temperature, rollout.sampling_top_p)


def learner_settings(config: Config, model_path: str) -> LearnerSettings:
    learner = config.learner
    return LearnerSettings(
        model_path=model_path,
        learning_rate=learner.learning_rate,
        schedule=learner.schedule,
        lr_warmup_steps=learner.lr_warmup_steps,
        total_steps=config.training.max_steps,
        adam_beta1=learner.adam_beta1,
        adam_beta2=learner.adam_beta2,
        adam_eps=learner.adam_eps,
        weight_decay=learner.adam_weight_decay,
        grad_clip_norm=learner.adam_grad_clip_norm,
        zero_stage=learner.zero_stage,
        micro_batch_tokens=learner.micro_batch_tokens,
        share_prefix=learner.share_prefix,
        gradient_checkpointing=learner.gradient_checkpointing,
        dtype=config.model.dtype,
        device=config.cluster.device,
        temperature=config.rollout.temperature,
        lora=LoraSettings(
            learner.lora.lora_rank, learner.lora.lora_alpha, learner.lora.dropout, config.weight_sync.lora
        ),
        num_threads=learner.num_threads,
        seed=config.seed,
        rendezvous_timeout_s=learner.start_timeout_s,
    )


def update_settings(config: Config) -> UpdateSettings:
    loss = config.algorithm.loss
    get_loss(loss.name)
    return UpdateSettings(
        loss=loss.name,
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        dual_clip=loss.dual_clip,
        aggregation=loss.aggregation,
        max_episode_tokens=loss.max_episode_tokens or config.environment.max_turns * config.rollout.sampling_max_tokens,
        correction_kind=config.algorithm.correction.kind,
        correction_level=config.algorithm.correction.level,
        correction_low=config.algorithm.correction.low,
        correction_high=config.algorithm.correction.high,
        kl_coefficient=config.algorithm.kl.coefficient,
        kl_estimator=config.algorithm.kl.estimator,
        entropy_coefficient=config.algorithm.entropy_coefficient,
    )


def advantage_settings(config: Config) -> AdvantageSettings:
    advantage = config.algorithm.advantage
    return AdvantageSettings(
        normalize_std=advantage.normalize_std,
        whiten=advantage.whiten,
        gamma=advantage.gamma,
        kl_beta=advantage.kl_beta,
        base=advantage.base,
    )


def supervised_settings(config: Config) -> UpdateSettings:
    """Cross-entropy over the tokens of demonstrations."""
    return UpdateSettings("cross_entropy", 0.0, 1.0, None, "token_mean", 1)


def engine_settings(rollout: RolloutConfig, model_path: str, dtype: str, device: str, seed: int) -> EngineSettings:
    """An engine that samples; what concerns new weights is left at its default."""
    cache = "kv_cache_gib" if device == "cpu" else "gpu_memory_utilization"
    memory: dict[str, Any] = {cache: getattr(rollout, cache)}
    return EngineSettings(
        model_path=model_path,
        max_model_len=rollout.max_sequence_length,
        dtype=dtype,
        device=device,
        max_num_seqs=rollout.rollout_max_concurrency,
        tensor_parallel_size=rollout.tensor_parallel_size,
        **memory,
        enforce_eager=rollout.enforce_eager,
        cpu_threads=rollout.cpu_threads,
        seed=seed,
    )


def worker_settings(config: Config, data: RunData, adapter_modules: tuple[str, ...] = ()) -> WorkerSettings:
    """`adapter_modules`: the layers that the learner's adapters change, when those are what is synchronised."""
    rollout, sync = config.rollout, config.weight_sync
    return WorkerSettings(
        engine=replace(
            engine_settings(rollout, data.model_path, config.model.dtype, config.cluster.device, config.seed),
            kv_on_update=config.staleness.kv_on_update,
            probe_tolerance=sync.probe_tolerance or PROBE_TOLERANCE[config.model.dtype],
            transport=sync.transport,
            adapter_rank=config.learner.lora.lora_rank if sync.lora == "adapter" else 0,
            adapter_modules=adapter_modules,
            yields=config.rollout.yield_to_learner,
        ),
        environment=environment_settings(config),
        tool_format=config.model.tool_format,
        reward=config.environment.reward,
        index_ids=data.index_ids,
        search=search_access(config),
        rollout_timeout=rollout.rollout_timeout,
        rollout_max_retries=rollout.rollout_max_retries,
        sync_folder=sync.folder,
        sync_timeout_s=sync.timeout_s,
        start_timeout_s=rollout.start_timeout_s,
    )


def process_environment(device: str) -> dict[str, Any]:
    """The runtime environment of a process that computes: a rollout worker or a learner rank."""
    variables = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if device == "cpu":
        # Learner and engine share the cores: threads that wait must spin briefly only.
        variables.update(GOMP_SPINCOUNT="20000", KMP_BLOCKTIME="0")
        if _JEMALLOC.exists() and platform.machine() == "x86_64":
            # Under glibc's allocator the heap of a learner breaks into pieces: a third more memory at the same speed.
            variables["LD_PRELOAD"] = str(_JEMALLOC)
    return {"env_vars": variables}


_JEMALLOC = Path(ray.__file__).parent / "core" / "libjemalloc.so"
"""Ray brings it along for its own processes."""


def learner_options(config: Config) -> dict[str, Any]:
    """Ray's options of one learner rank."""
    learner = config.learner
    options: dict[str, Any] = {
        "num_cpus": learner.cpus_per_rank,
        "num_gpus": learner.gpus_per_rank,
        "runtime_env": process_environment(config.cluster.device),
    }
    if config.weight_sync.transport in DEVICE_BACKENDS:
        options["concurrency_groups"] = {TRANSFER_GROUP: config.rollout.num_workers + config.rollout.max_restarts}
    return options


def worker_options(config: Config) -> dict[str, Any]:
    """Ray's options of one rollout worker."""
    rollout = config.rollout
    environment = process_environment(config.cluster.device)
    if config.weight_sync.transport == "ipc":
        # Handles of device memory are Python objects; they travel between this worker's own processes only.
        environment["env_vars"]["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    return {
        "num_cpus": rollout.cpus_per_worker,
        "num_gpus": rollout.gpus_per_worker,
        "runtime_env": environment,
    }
