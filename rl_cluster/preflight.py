"""Checks before anything starts: algorithms by name, model, data, and what the job asks of the cluster."""

from __future__ import annotations

import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_cluster.config import Config, bound_settings, tracking_uri
from rl_cluster.errors import CheckpointError, ClusterError, ConfigError, DataError, ModelError
from rl_cluster.own_folder import check_folder, folder_problem
from rl_cluster.scheduling.placement import SLACK, Ask, unplaced
from rl_cluster.service.values import SEARCH_TOOLS, index_name, open_parts, shards_of

if TYPE_CHECKING:
    from rl_cluster.datasets.task import Document, Task

BUNDLED_CORPUS = "enterprise_kb"
SIZE_SAMPLE = 200
"""Documents of each corpus over which the usual length of a tool answer is measured."""


def check_inputs(config: Config) -> None:
    """Raises the first typed error among names, model folder and data files; starts nothing."""
    from rl_cluster.algorithms.advantages import check_settings_are_read, get_advantage
    from rl_cluster.algorithms.losses import get_loss
    from rl_cluster.algorithms.types import AdvantageSettings
    from rl_cluster.demonstrators import get_demonstrator
    from rl_cluster.episodes.formats import get_format
    from rl_cluster.evaluation.external import get_external_metric
    from rl_cluster.rewards import get_reward
    from rl_cluster.tracking.store import check_store

    get_loss(config.algorithm.loss.name)
    advantage = config.algorithm.advantage
    get_advantage(advantage.name)
    check_settings_are_read(advantage.name, AdvantageSettings(**advantage.model_dump(exclude={"name"})))
    get_reward(config.environment.reward)
    get_demonstrator(config.warmup.demonstrator)
    get_external_metric(config.evaluation.external_metric)
    if config.model.tool_format != "auto":
        get_format(config.model.tool_format)
    check_folder(Path(config.output_dir), "job")
    _check_resume(config)
    if config.tracking.enabled:
        check_store(tracking_uri(config))
    _check_model(config)
    _check_reference(config)
    _check_search(config)
    _check_demonstrator(config)
    _check_data(config)


def check_inputs_apart(config: Config) -> None:
    """`check_inputs` in a process that ends with it: what it reads and imports (the collection, transformers) would otherwise stay
    with the driver, which only follows the job, to the job's end."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            pool.submit(check_inputs, config).result()
        except BrokenProcessPool as error:
            raise ClusterError(
                "The process that checks model and data was killed before it ended, most likely for lack of memory; free some memory of "
                "this machine and start again."
            ) from error


def _check_resume(config: Config) -> None:
    """A folder that holds a run may only be continued, and only with the settings that its numbers depend on."""
    from rl_cluster.learning.checkpoint import last_checkpoint, read_state

    folder = last_checkpoint(Path(config.output_dir) / "checkpoints")
    if folder is None:
        return
    if config.resume == "never":
        raise ConfigError(
            f"output_dir={config.output_dir} holds a run at {folder.name}; set resume=auto to continue it, or choose another "
            "run_name or output_dir."
        )
    if not config.training.max_steps:
        raise ConfigError(
            f"training.max_steps=0 starts from the model anew, but output_dir={config.output_dir} holds a run at {folder.name}; choose "
            "another run_name or output_dir."
        )
    before = bound_settings(read_state(folder).config)
    now = bound_settings(config.model_dump(mode="json"))
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise CheckpointError(
                f"{folder} was made with {name}={before.get(name)}, the job asks for {now.get(name)}; resume with the former, or "
                "choose another run_name or output_dir."
            )


def _check_model(config: Config) -> None:
    from rl_cluster.models.parts import weight_bytes
    from rl_cluster.models.source import resolve_model

    path, sync = Path(resolve_model(config.model.name)), config.weight_sync
    if not path.is_dir():
        return
    size = weight_bytes(path, config.model.dtype, "model.name")
    # Weights that go from device to device are in no file, and adapters alone are small.
    if sync.transport in ("nccl", "ipc") or sync.lora == "adapter":
        return
    folder = Path(sync.folder)
    if problem := folder_problem(folder):
        raise ConfigError(f"weight_sync.folder={folder} cannot be written ({problem}); choose another folder.")
    existing = next(parent for parent in [folder, *folder.parents] if parent.exists())
    free = shutil.disk_usage(existing).free
    # Two snapshots lie there at once: the newest, and the one that a slow worker still reads.
    if free < 2 * size:
        raise ConfigError(
            f"weight_sync.folder={folder} has {free / 1e9:.1f} GB free, but two snapshots of {config.model.name} in "
            f"model.dtype={config.model.dtype} need {2 * size / 1e9:.1f} GB; choose another folder or enlarge it (Docker: --shm-size)."
        )


def _check_reference(config: Config) -> None:
    """A reference or teacher scores the policy's own token ids, so that both must read them alike."""
    if config.learner.reference in (None, "start"):
        return
    from rl_cluster.models.parts import configuration_and_tokenizer
    from rl_cluster.models.source import resolve_model

    names = {"model.name": config.model.name, "learner.reference": str(config.learner.reference)}
    policy, reference = (
        configuration_and_tokenizer(resolve_model(name, setting), setting)[1].get_vocab()
        for setting, name in names.items()
    )
    other = next((token for token, number in policy.items() if reference.get(token) != number), None)
    if other is not None:
        raise ModelError(
            f"learner.reference={config.learner.reference} has another token id for {other!r} than {config.model.name}; choose a model with the same tokenizer."
        )


def _check_search(config: Config) -> None:
    if config.search.external is not None:
        from rl_cluster.service.http_search import http_search_settings

        http_search_settings(config.search)
        if config.environment.max_k > config.search.external.max_k:
            raise ConfigError(
                f"environment.max_k={config.environment.max_k} is over search.external.max_k={config.search.external.max_k}, the most "
                "results of one search there; lower the former, or raise the latter if the endpoint gives more."
            )
        return
    from rl_cluster.retrieval.models import check_models
    from rl_cluster.retrieval.settings import settings_from_config
    from rl_cluster.service.access import token_digest

    token_digest(config.search.token_env)
    parts = open_parts(config.environment.tools)
    settings_from_config(config.search.model_dump(), (), parts)
    if "vector" in parts:
        check_models(config.search.embedder, config.search.embed_max_tokens, config.search.fusion.reranker)


def _check_demonstrator(config: Config) -> None:
    """The searcher by rule needs both ways of searching; without one it finds nothing that it could demonstrate."""
    if not config.warmup.enabled or config.warmup.demonstrator != BUNDLED_CORPUS:
        return
    missing = next((tool for tool in ("bm25_search", "vector_search") if tool not in config.environment.tools), None)
    if missing is not None:
        raise ConfigError(
            f"warmup.demonstrator={BUNDLED_CORPUS} searches with {missing}, which environment.tools={list(config.environment.tools)} lacks; "
            "add it, or set warmup=judgements or warmup=none."
        )


def _check_data(config: Config) -> None:
    from rl_cluster.datasets.corpus import check_fields_known, fields_without_documents, read_corpus
    from rl_cluster.datasets.manifest import is_confidential
    from rl_cluster.datasets.source import prepare_data
    from rl_cluster.datasets.tables import check_tasks, read_tasks

    folder = prepare_data(config.data)
    if is_confidential(folder):
        raise DataError(
            f"data.folder={folder} is confidential by its manifest: its texts must not reach a model, a tracker or a report; evaluate on it "
            "instead."
        )
    seen: dict[str, str] = {}
    everything: list[Task] = []
    for split in ("train", "validation", "test"):
        tasks = read_tasks(folder / "tasks.parquet", split, config.data.name)
        everything += tasks
        for task in tasks:
            if task.task_id in seen:
                raise DataError(
                    f"{folder / 'tasks.parquet'}: task_id {task.task_id!r} stands in {seen[task.task_id]} and in {split}; "
                    "give each task to one split."
                )
            seen[task.task_id] = split
        if split == "train" and config.warmup.enabled and config.warmup.demonstrator == BUNDLED_CORPUS:
            foreign = next((task for task in tasks if task.corpus != BUNDLED_CORPUS), None)
            if foreign is not None:
                raise ConfigError(
                    f"warmup.demonstrator={BUNDLED_CORPUS}: it understands {BUNDLED_CORPUS!r} only, but task {foreign.task_id!r} belongs to "
                    f"corpus {foreign.corpus!r}; set warmup=judgements or warmup=none."
                )
        if split == "train" and len(tasks) < config.training.global_batch_size:
            raise ConfigError(
                f"training.global_batch_size={config.training.global_batch_size} is over the {len(tasks)} training tasks of "
                f"{folder}; lower it or give more tasks."
            )
    _check_same_tasks(config, everything)
    sample: list[Document] = []
    unknown = set(config.environment.filter_fields) if config.search.external is None else set()
    names = sorted({task.corpus for task in everything})
    if config.search.external is not None and len(names) > 1:
        raise ConfigError(
            f"search.external={config.search.external.url} answers from one collection, but the tasks of {folder} ask {len(names)} corpora "
            f"({', '.join(names[:5])}); train on one of them, or leave search.external out."
        )
    for name in names:
        corpus = read_corpus(folder / "corpus.parquet", name)
        check_tasks((task for task in everything if task.corpus == name), set(corpus.doc_ids), name)
        unknown = fields_without_documents(corpus, unknown)
        sample += [corpus.at(position) for position in range(0, len(corpus), max(1, len(corpus) // SIZE_SAMPLE))]
    _check_index_names(folder, names)
    check_fields_known("environment.filter_fields", config.environment.filter_fields, unknown, str(folder))
    _check_size(config, everything, sample)


def _check_same_tasks(config: Config, tasks: list[Task]) -> None:
    """A run may only be continued on the tasks that it began with."""
    from rl_cluster.datasets.task import digest_of
    from rl_cluster.learning.checkpoint import TASKS, check_same_data, last_checkpoint, read_state

    if folder := last_checkpoint(Path(config.output_dir) / "checkpoints"):
        check_same_data(folder, read_state(folder).data, {TASKS: digest_of(tasks)})


def _check_index_names(folder: Path, corpora: list[str]) -> None:
    by_index: dict[str, str] = {}
    for corpus in corpora:
        other = by_index.setdefault(index_name(corpus), corpus)
        if other != corpus:
            raise DataError(
                f"{folder / 'tasks.parquet'}: the corpora {other!r} and {corpus!r} would both be served as {index_name(corpus)!r}; rename one."
            )


def _check_size(config: Config, tasks: list[Task], sample: list[Document]) -> None:
    from rl_cluster.environments.search import SearchEnvironmentSettings
    from rl_cluster.environments.sizing import measure_episode
    from rl_cluster.models.parts import check_cache, check_learnable, configuration_and_tokenizer, positions_of
    from rl_cluster.models.source import resolve_model

    environment, rollout = config.environment, config.rollout
    configuration, tokenizer = configuration_and_tokenizer(resolve_model(config.model.name), "model.name")
    check_learnable(configuration, config.model.name, config.learner.share_prefix)
    check_cache(
        configuration,
        config.model.name,
        config.model.dtype,
        rollout.max_sequence_length,
        rollout.kv_cache_gib,
        rollout.tensor_parallel_size,
    )
    limit = positions_of(configuration)
    if limit is not None and rollout.max_sequence_length > limit:
        raise ConfigError(
            f"rollout.max_sequence_length={rollout.max_sequence_length} is over the {limit} positions of {config.model.name}; lower it, or "
            "choose a model with a longer context."
        )
    size = measure_episode(
        tokenizer,
        config.model.tool_format,
        SearchEnvironmentSettings(
            environment.max_turns, environment.k, environment.max_k, environment.tools, environment.filter_fields
        ),
        tasks,
        sample,
        config.search.snippet_words,
        rollout.sampling_max_tokens,
    )
    if size.total > rollout.max_sequence_length:
        raise ConfigError(
            f"rollout.max_sequence_length={rollout.max_sequence_length} is too short: a prompt of {size.prompt} tokens, "
            f"environment.max_turns={size.max_turns} replies of rollout.sampling_max_tokens={size.reply} and {size.max_turns - 1} tool "
            f"answers of about {size.observation} need {size.total}; raise it, or lower max_turns, environment.k or search.snippet_words."
        )


def asked(config: Config) -> list[Ask]:
    """What the job's processes ask of Ray: workers, ranks, and the search replicas of each tool that a run offers."""
    rollout, learner, search = config.rollout, config.learner, config.search
    asks = [
        Ask("rollout worker", rollout.num_workers, rollout.cpus_per_worker, rollout.gpus_per_worker),
        Ask("learner rank", learner.num_ranks, learner.cpus_per_rank, learner.gpus_per_rank),
    ]
    for tool in config.environment.tools if search.external is None else ():
        if tool in SEARCH_TOOLS:
            gpus = search.gpus_per_replica if search.needs_gpu and "vector" in open_parts([tool]) else 0.0
            number = shards_of(tool, search.shards) * search.min_replicas
            asks.append(Ask(f"replica of {tool}", number, search.cpus_per_replica, gpus))
    return asks


@dataclass
class Fit:
    """`table`: what the job asks of the cluster against what that has; `lacks`: what there is too little of, in words, none where
    the job fits; `mends`: what to do about that; `busy`: what others hold now, so that the job has to wait for it."""

    table: Any
    lacks: list[str] = field(default_factory=list)
    mends: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)


def fit(config: Config) -> Fit:
    """What the job asks of the connected cluster against what it has and what of that is free now, with the processes that fit on
    none of its nodes."""
    import ray
    from rich.table import Table

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    asks, gib = asked(config), 1 << 30
    rows = [("CPU", "CPU", sum(ask.number * ask.cpus for ask in asks), 1)]
    rows.append(("GPU", "GPU", sum(ask.number * ask.gpus for ask in asks), 1))
    if config.cluster.object_store_gib:
        rows.append(("object store GiB", "object_store_memory", config.cluster.object_store_gib, gib))
    table = Table(
        title=f"What run {config.run_name!r} asks of the cluster ({len(nodes)} node(s))", title_justify="left"
    )
    for column in ("resource", "asked", "cluster has", "free now", ""):
        table.add_column(column, justify="left" if column in ("resource", "") else "right")
    found = Fit(table)
    for name, resource, wanted, unit in rows:
        has = sum(node.get(resource, 0.0) for node in nodes) / unit
        enough = wanted <= has + SLACK
        if not enough:
            found.lacks.append(f"{wanted:g} {name} of {has:g}")
            if resource == "object_store_memory":
                found.mends.append(
                    f"lower cluster.object_store_gib={wanted:g}, or start Ray with --object-store-memory={wanted * gib:.0f} (bytes)"
                )
        elif unit == 1 and wanted > free.get(resource, 0.0) / unit + SLACK:
            found.busy.append(f"{wanted:g} {name}, of which {free.get(resource, 0.0) / unit:g} is free")
        lack = "" if enough else f"[red]{wanted - has:.2f} missing[/]"
        table.add_row(name, f"{wanted:.2f}", f"{has:.2f}", f"{free.get(resource, 0.0) / unit:.2f}", lack)
    missing = unplaced(asks, nodes)
    for ask in asks:
        if ask.kind in missing:
            each = f"{ask.kind} of {ask.cpus:g} CPU, {ask.gpus:g} GPU"
            table.add_row(each, str(ask.number), "", "", f"[red]{missing[ask.kind]} on no node[/]")
            found.lacks.append(f"room for {missing[ask.kind]} of {ask.number} x {each}")
    if len(found.lacks) > len(found.mends):
        found.mends.append(
            f"lower rollout.num_workers={config.rollout.num_workers} or learner.num_ranks={config.learner.num_ranks}, or what each of them "
            "takes, or add nodes"
        )
    return found
