"""Numbers out: `python -m rl_cluster.evaluate system=[bm25,vector,fusion,model] systems.model.path=FOLDER`.

Plays every system on the same questions, compares them in pairs, once more under each drift that is asked for, and writes
`report.html`, `report.md` and `report.json`. What is complete is kept on disk as it comes, so that the same command in the same
folder goes on where a failure ended it. Ray and vLLM are started only where a system is a model of one's own: on the
cluster that RAY_ADDRESS names, as in a Ray job, otherwise on this machine for as long as the evaluation takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig
from rich.console import Console

from rl_cluster.composition import Application
from rl_cluster.errors import ClusterError, ConfigError, DeadlineError, EngineError, RLClusterError
from rl_cluster.evaluation.settings import (
    BaselineConfig,
    EndpointConfig,
    EvaluateConfig,
    ModelSystemConfig,
    SystemConfig,
    check_evaluate,
    searched_tools,
    systems_of,
)
from rl_cluster.interrupts import raise_on
from rl_cluster.own_folder import check_folder, own_folder

if TYPE_CHECKING:
    from rl_cluster.datasets.corpus import Corpus
    from rl_cluster.evaluation.drift.base import Drift
    from rl_cluster.evaluation.kept import KeptParts
    from rl_cluster.evaluation.players.base import Player
    from rl_cluster.evaluation.report import ReportContent
    from rl_cluster.evaluation.runner import Evaluation, Stage
    from rl_cluster.evaluation.world import QuestionSet, World

    OpenWorld = Callable[[QuestionSet, Corpus, Drift], Awaitable[World]]

EVALUATE = Application("evaluate", "rl_cluster.evaluate", check_evaluate)
Say = Callable[[str], None]
CLOSE_TIMEOUT_S = 20.0


@hydra.main(version_base="1.3", config_path="pkg://hydra_conf", config_name="evaluate")
def _main(settings: DictConfig) -> None:
    sys.exit(run(EVALUATE.checked(settings)))


def run(config: EvaluateConfig) -> int:
    """Checks everything, evaluates, and says where the report is; the process's exit code."""
    console = Console(width=None if sys.stdout.isatty() else 110)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    try:
        from rl_cluster.evaluation.question_sets import question_sets
        from rl_cluster.evaluation.table import comparison_table, drift_table

        sets = question_sets(config.folders, config.data, config.split, config.limit)
        kept = check_inputs(config, sets)
        if config.dry_run:
            console.print_json(json.dumps(config.model_dump(mode="json")))
            for questions in sets:
                say(f"{questions.dataset}: {len(questions.tasks)} questions over the corpus {questions.corpus}")
            return 0
        say(
            f"evaluation {config.run_name}; after an interruption the same command with run_name={config.run_name} continues it"
        )
        with own_folder(config.folder, "evaluation"):
            content, paths = evaluate(config, sets, kept, say)
    except RLClusterError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say(
            f"interrupted; what is complete is kept, and the same command with run_name={config.run_name} goes on from there"
        )
        return 130
    console.print(comparison_table(content.comparison))
    if content.drifts:
        console.print(drift_table(content.drifts))
    for note in content.comparison["notes"]:
        say(note)
    for path in paths:
        say(f"{path.name:<12} {path}")
    systems = {name: found["overall"] for name, found in content.comparison["systems"].items()}
    lost = [name for name, found in systems.items() if found["infrastructure"] == found["episodes"]]
    if lost:
        say(
            f"error: infrastructure failed every episode of {', '.join(lost)}, so that its zeros say nothing of it; the same command "
            f"with run_name={config.run_name} plays them again"
        )
    return 1 if lost else 0


def evaluate(
    config: EvaluateConfig, sets: Sequence[QuestionSet], kept: KeptParts, say: Say
) -> tuple[ReportContent, list[Path]]:
    """Plays what is not kept, compares, writes the report and tracks it. Raises RLClusterError."""
    from rl_cluster.evaluation.drift import get_drift
    from rl_cluster.evaluation.report import write_report
    from rl_cluster.evaluation.runner import Plan, evaluate_systems, report_of

    systems = systems_of(config)
    confidential = ", ".join(found.dataset for found in sets if found.confidential)
    if confidential:
        say(
            f"{confidential}: confidential, so no question, query or document text goes into the report, MLflow or traces"
        )
    if kept.summary:
        say(kept.summary)
    drifts = {name: get_drift(values) for name, values in config.evaluation.drift.items()}
    plan = Plan(
        stages=_stages(config, systems, say),
        drifts=drifts,
        open_world=_open_index_world(config, systems),
        samples=config.samples,
        kept=kept,
        traces=config.tracking.traces_per_step if config.tracking.enabled else 0,
    )

    async def play() -> Evaluation:
        if config.search.external is None:
            return await evaluate_systems(sets, plan, say)
        async with _endpoint_worlds(config, systems) as open_world:
            return await evaluate_systems(sets, replace(plan, open_world=open_world), say)

    evaluation = asyncio.run(play())
    prices = {name: system.prices.prices() for name, system in systems.items()}
    facts = {
        "questions": ", ".join(f"{len(found.tasks)} of {found.dataset}" for found in sets),
        "split": config.split,
        "episodes per question": str(config.samples),
        "temperature": f"{config.temperature:g}",
    }
    if confidential:
        facts["confidential"] = f"{confidential}; texts are withheld"
    content = report_of(
        config.run_name, list(systems), evaluation, config.measure_settings, prices, drifts, config.repeats, facts
    )
    numbers = {
        "run_name": config.run_name,
        "config": config.model_dump(mode="json"),
        "facts": facts,
        **content.comparison,
        "drift": content.drifts,
    }
    paths = write_report(config.folder, content, numbers)
    if config.tracking.enabled:
        losses = _track(config, content, evaluation, paths)
        if losses:
            say(f"warning: {losses}")
    return content, paths


def check_inputs(config: EvaluateConfig, sets: Sequence[QuestionSet]) -> KeptParts:
    """Raises the first error among output folder, tracking store, models, tool formats, keys, documents, drifts and what was played before; starts nothing.

    Returns what was played before.
    """
    from rl_cluster.evaluation.drift import get_drift
    from rl_cluster.evaluation.endpoint_world import check_endpoint_worlds
    from rl_cluster.evaluation.kept import KeptParts, Part
    from rl_cluster.evaluation.part_settings import settings_of_parts, weights_digest
    from rl_cluster.evaluation.world import check_documents, check_filters
    from rl_cluster.learning.checkpoint_export import resolve_policy
    from rl_cluster.models.parts import check_cache, configuration_and_tokenizer
    from rl_cluster.tracking.store import check_store

    check_folder(config.folder, "evaluation")
    if config.tracking.enabled:
        check_store(_tracking_uri(config))
    systems = systems_of(config)
    models, weights = {}, {}
    for name, system in systems.items():
        if isinstance(system, ModelSystemConfig):
            path = resolve_policy(system.path, f"systems.{name}.path")
            models[name] = (system, *configuration_and_tokenizer(path, f"systems.{name}.path"))
            check_cache(
                models[name][1],
                system.path,
                system.dtype,
                config.rollout.max_sequence_length,
                config.rollout.kv_cache_gib,
                config.rollout.tensor_parallel_size,
            )
            weights[name] = weights_digest(path)
        elif isinstance(system, EndpointConfig):
            _check_confidential(name, system, sets)
            _endpoint(config, system)
    drifts = {name: get_drift(values) for name, values in config.evaluation.drift.items()}
    if config.search.external is not None:
        check_endpoint_worlds(config.search, searched_tools(config, systems), sets, drifts)
    parts: dict[Part, dict[str, Any]] = {}
    for questions in sets:
        corpus = questions.read_corpus()
        if config.search.external is None:  # the endpoint's documents are not at hand
            check_filters(questions, corpus, config.environment.filter_fields, drifts)
        check_documents(questions, corpus, drifts)
        for system, configuration, tokenizer in models.values():
            _check_context(config, system, configuration, tokenizer, questions, corpus)
        locales = questions.locales(corpus)
        index = _index_settings(config, systems, locales) if config.search.external is None else None
        parts |= settings_of_parts(config, systems, weights, questions, corpus, index)
    kept = KeptParts(config.folder, parts)
    kept.open(config.resume)
    return kept


def _check_confidential(name: str, system: EndpointConfig, sets: Sequence[QuestionSet]) -> None:
    held = [questions.dataset for questions in sets if questions.confidential]
    if held and not system.send_confidential:
        raise ConfigError(
            f"systems.{name} would send questions and documents of {held[0]}, which is confidential by its manifest, to {system.url}; leave "
            f"the system out, or set systems.{name}.send_confidential=true if whoever runs it may see them."
        )


def _check_context(
    config: EvaluateConfig,
    system: ModelSystemConfig,
    configuration: Any,
    tokenizer: Any,
    questions: QuestionSet,
    corpus: Corpus,
) -> None:
    from rl_cluster.evaluation.players.model import check_context
    from rl_cluster.models.parts import positions_of

    check_context(
        tokenizer,
        positions_of(configuration),
        system.path,
        system.tool_format,
        config.rollout,
        _environment(config),
        config.search.snippet_words,
        questions.tasks,
        [corpus.at(position) for position in range(0, len(corpus), max(1, len(corpus) // 200))],
    )


def _environment(config: EvaluateConfig):
    from rl_cluster.environments.search import SearchEnvironmentSettings

    environment = config.environment
    return SearchEnvironmentSettings(
        environment.max_turns, environment.k, environment.max_k, environment.tools, environment.filter_fields
    )


def _index_settings(config: EvaluateConfig, systems: Mapping[str, SystemConfig], locales: Sequence[str]):
    """With the parts that some system reads, and no others: building vectors takes the longest."""
    from rl_cluster.retrieval.settings import settings_from_config
    from rl_cluster.service.values import open_parts

    parts = open_parts(searched_tools(config, systems))
    if "vector" in parts:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
    return replace(settings_from_config(config.search.model_dump(), locales), parts=parts)


def _open_index_world(config: EvaluateConfig, systems: Mapping[str, SystemConfig]) -> OpenWorld:
    """Worlds over indexes in this process."""
    from rl_cluster.evaluation.world import open_world
    from rl_cluster.models.source import cache_root
    from rl_cluster.retrieval.devices import devices_from_config

    async def opened(questions: QuestionSet, corpus: Corpus, drift: Drift) -> World:
        return await asyncio.to_thread(
            open_world,
            questions,
            corpus,
            drift,
            _environment(config),
            _index_settings(config, systems, questions.locales(corpus)),
            cache_root() / "indexes",
            config.seed,
            devices_from_config(config.search.model_dump()),
            config.search.memory_gib,
            config.search.timeout_s,
        )

    return opened


@contextlib.asynccontextmanager
async def _endpoint_worlds(config: EvaluateConfig, systems: Mapping[str, SystemConfig]) -> AsyncIterator[OpenWorld]:
    """Worlds over the endpoint."""
    from rl_cluster.evaluation.endpoint_world import EndpointSearch, open_endpoint_world
    from rl_cluster.service.http_search import HttpSearchClient, endpoint_id, http_search_settings
    from rl_cluster.service.values import SEARCH_TOOLS

    settings = http_search_settings(config.search)
    client = HttpSearchClient(settings)
    try:
        yield partial(
            open_endpoint_world,
            environment=_environment(config),
            search=EndpointSearch(client, settings.max_k, settings.timeout_s),
            tools=[tool for tool in searched_tools(config, systems) if tool in SEARCH_TOOLS],
            identity=endpoint_id(config.search),
            seed=config.seed,
        )
    finally:
        await client.close()


def _stages(config: EvaluateConfig, systems: Mapping[str, SystemConfig], say: Say) -> list[Stage]:
    """What needs no engine together, then one model after another."""
    from rl_cluster.evaluation.runner import Stage

    light = {name: system for name, system in systems.items() if not isinstance(system, ModelSystemConfig)}
    stages = []
    if light:
        stages.append(Stage(list(light), lambda names: _light_players(config, {name: light[name] for name in names})))
    for name, system in systems.items():
        if isinstance(system, ModelSystemConfig):
            stages.append(Stage([name], lambda _, name=name, system=system: _model_player(config, name, system, say)))
    return stages


@contextlib.asynccontextmanager
async def _light_players(
    config: EvaluateConfig, systems: Mapping[str, SystemConfig]
) -> AsyncIterator[dict[str, Player]]:
    from rl_cluster.evaluation.players.baseline import Baseline
    from rl_cluster.evaluation.players.scripted import Scripted

    players: dict[str, Player] = {}
    async with contextlib.AsyncExitStack() as stack:
        for name, system in systems.items():
            if isinstance(system, EndpointConfig):
                endpoint = _endpoint(config, system)
                stack.push_async_callback(endpoint.close)
                await endpoint.check()
                players[name] = endpoint
            else:
                players[name] = Baseline(system.tool) if isinstance(system, BaselineConfig) else Scripted()
        yield players


def _endpoint(config: EvaluateConfig, system: EndpointConfig):
    from rl_cluster.evaluation.players.endpoint import Endpoint

    return Endpoint(system, config.temperature, system.max_tokens)


@contextlib.asynccontextmanager
async def _model_player(
    config: EvaluateConfig, name: str, system: ModelSystemConfig, say: Say
) -> AsyncIterator[dict[str, Player]]:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from transformers import AutoTokenizer

    from actors.engine_host import EngineHost
    from actors.remote import within
    from actors.run_parts import engine_settings, process_environment
    from rl_cluster.episodes.episode import EpisodeLimits
    from rl_cluster.episodes.sampling import Sample, SamplingSettings
    from rl_cluster.evaluation.players.model import Model
    from rl_cluster.learning.checkpoint_export import resolve_policy
    from rl_cluster.rewards import get_reward

    rollout = config.rollout
    path = resolve_policy(system.path)
    _connect(config)
    settings = engine_settings(rollout, path, system.dtype, config.cluster.device, config.seed)
    say(f"starting the engine of {name} ({system.path})")
    host = EngineHost.options(
        num_cpus=rollout.cpus_per_worker,
        num_gpus=rollout.gpus_per_worker,
        runtime_env=process_environment(config.cluster.device),
    ).remote(settings)

    async def ask(timeout_s: float, reference: Any, late: RLClusterError) -> Any:
        """What the host answers; raises `late` after the time, and what it raised on purpose without Ray's account of where."""
        try:
            return await within(timeout_s, reference)
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, RLClusterError) else error) from None
        except TimeoutError as error:
            raise late from error
        except RayError as error:
            raise ClusterError(f"The engine of {name} died: {str(error).splitlines()[0]}") from error

    async def sample(prompt_ids: list[int], sampling: SamplingSettings) -> Sample:
        late = f"The engine of {name} did not answer within rollout.rollout_timeout={rollout.rollout_timeout:.0f} s."
        return await ask(rollout.rollout_timeout, host.sample.remote(prompt_ids, sampling), EngineError(late))

    try:
        late = (
            f"The engine of {name} was not ready within rollout.start_timeout_s={rollout.start_timeout_s:.0f} s; does the cluster "
            f"have {rollout.cpus_per_worker:g} CPUs and {rollout.gpus_per_worker:g} GPUs free?"
        )
        await ask(rollout.start_timeout_s, host.start.remote(rollout.start_timeout_s), DeadlineError(late))
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        limits = EpisodeLimits(
            rollout.sampling_max_tokens, rollout.max_sequence_length, config.temperature, rollout.sampling_top_p
        )
        yield {
            name: Model(
                sample,
                tokenizer,
                system.tool_format,
                limits,
                get_reward("ndcg"),
                rollout.rollout_max_concurrency,
                rollout.rollout_max_retries,
                name,
            )
        }
    finally:
        with contextlib.suppress(TimeoutError, RayError):
            await within(CLOSE_TIMEOUT_S, host.close.remote())
        ray.kill(host, no_restart=True)


def _connect(config: EvaluateConfig) -> None:
    """To the cluster that RAY_ADDRESS names, otherwise to one that is started here and ends with this process."""
    import ray

    from actors.own_ray import start_own_ray

    if ray.is_initialized():
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    address = os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        if config.cluster.object_store_gib:
            options["object_store_memory"] = int(config.cluster.object_store_gib * (1 << 30))
        start_own_ray(lambda said: print(said, flush=True), **options)
        return
    try:
        ray.init(address=address, **options)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"No Ray cluster answers at RAY_ADDRESS={address}; start it, or unset the variable to run on this machine."
        ) from error


def _tracking_uri(config: EvaluateConfig) -> str:
    return config.tracking.uri or f"sqlite:///{config.folder.parent / 'mlflow.db'}"


def _track(config: EvaluateConfig, content: ReportContent, evaluation: Evaluation, paths: Sequence[Path]) -> str:
    """Returns a sentence on what MLflow did not take, empty where it took all."""
    from rl_cluster.evaluation.report.flat import flat_numbers
    from rl_cluster.tracking.mlflow_tracker import Tracker

    tracker = Tracker(
        _tracking_uri(config), config.tracking.experiment, config.run_name, config.model_dump(mode="json")
    )
    tracker.log_metrics(flat_numbers(content.comparison, content.drifts), 0)
    for trajectories in evaluation.traces.values():
        tracker.log_traces(trajectories, 0, config.tracking.traces_per_step)
    for path in paths:
        tracker.log_artifact(path)
    tracker.finish()
    return tracker.losses


def main() -> None:
    """Entry point; a wrong command line ends with one sentence and exit code 2. Ctrl-C counts where a shell started this in the
    background too, with the signal ignored."""
    raise_on(signal.SIGINT)
    EVALUATE.check_command_line(sys.argv[1:])
    _main()


if __name__ == "__main__":
    main()
