"""The typed schema of every setting. Hydra composes the values, this module checks them; it imports nothing heavy.

`validate` turns a composed configuration into a `Config` or raises ConfigError: one sentence that names the setting, its
value and the mend. Checks that need a file, a model or the cluster live where those are opened.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from rl_cluster.config_algorithm import UNGROUPED_ADVANTAGES, AlgorithmConfig
from rl_cluster.config_rollout import ClusterConfig, RolloutConfig, check_memory
from rl_cluster.config_search import ENDPOINT_ACCESS, AgentTool, SearchConfig
from rl_cluster.config_types import (
    AbsolutePath,
    Fraction,
    NonNegative,
    Positive,
    RunName,
    Seconds,
    Section,
    Seed,
    Temperature,
    UserPath,
)
from rl_cluster.errors import ConfigError


class ModelConfig(Section):
    name: UserPath
    dtype: Literal["float32", "bfloat16"]
    tool_format: str


class EnvironmentConfig(Section):
    name: Literal["search"]
    max_turns: Annotated[int, Field(ge=2, le=100)]
    k: Annotated[int, Field(ge=1, le=50)]
    max_k: Annotated[int, Field(ge=1, le=100)]
    tools: tuple[AgentTool, ...] = Field(min_length=1, strict=False)
    filter_fields: tuple[str, ...] = Field(strict=False)
    reward: str

    @model_validator(mode="after")
    def _k_within_max(self) -> EnvironmentConfig:
        if self.k > self.max_k:
            raise ValueError(f"k={self.k} is over max_k={self.max_k}; raise max_k or lower k")
        if len(set(self.tools)) < len(self.tools):
            raise ValueError(f"tools={list(self.tools)} names a tool twice; leave one out")
        if set(self.tools) == {"read_document"}:
            raise ValueError("tools=['read_document'] finds nothing to read; add a search tool")
        return self


class TrainingConfig(Section):
    """`max_steps`: of reinforcement learning; 0 for supervised fine-tuning (the warm-up) alone. `trained_per_group`: of the
    `group_size` episodes that are played, how many are trained, those whose rewards vary most; null for all."""

    global_batch_size: Positive
    group_size: Annotated[int, Field(ge=2, le=128)]
    trained_per_group: Annotated[int, Field(ge=2)] | None
    max_steps: NonNegative
    max_epochs: Positive
    save_every: NonNegative
    keep_checkpoints: Positive
    val_every: NonNegative
    val_at_start: bool
    straggler_timeout_s: Seconds
    step_timeout_s: Seconds
    drop_groups_without_signal: bool
    curriculum: Literal["none", "difficulty"]

    @model_validator(mode="after")
    def _part_of_a_group(self) -> TrainingConfig:
        if self.trained_per_group is not None and self.trained_per_group > self.group_size:
            raise ValueError(
                f"trained_per_group={self.trained_per_group} is over group_size={self.group_size}; lower it, or leave it out to train all"
            )
        return self


ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM serves."""


class LoraConfig(Section):
    lora_rank: NonNegative
    lora_alpha: Positive
    dropout: Fraction


class LearnerConfig(Section):
    num_ranks: Positive
    zero_stage: Annotated[int, Field(ge=0, le=3)]
    learning_rate: Annotated[float, Field(gt=0, le=1e-2)]
    schedule: Literal["constant", "linear", "cosine"]
    lr_warmup_steps: NonNegative
    adam_beta1: Annotated[float, Field(ge=0, lt=1)]
    adam_beta2: Annotated[float, Field(ge=0, lt=1)]
    adam_eps: Annotated[float, Field(ge=1e-16, le=1e-2)]
    adam_weight_decay: Fraction
    adam_grad_clip_norm: Annotated[float, Field(ge=0, le=100)]
    micro_batch_tokens: Positive
    share_prefix: bool
    gradient_checkpointing: bool
    lora: LoraConfig
    cpus_per_rank: Annotated[float, Field(ge=0)]
    gpus_per_rank: Annotated[float, Field(ge=0)]
    num_threads: Positive
    start_timeout_s: Seconds
    drift_alarm: Annotated[float, Field(gt=0)]
    reference: UserPath | None

    @model_validator(mode="after")
    def _prefix_or_checkpointing(self) -> LearnerConfig:
        if self.share_prefix and self.gradient_checkpointing:
            raise ValueError(
                "share_prefix needs the prefix's keys and values, which gradient_checkpointing discards; switch one off"
            )
        if self.share_prefix and self.zero_stage == 3 and self.num_ranks > 1:
            raise ValueError(
                "share_prefix lets ranks call the model unequally often, which hangs zero_stage=3; switch one off"
            )
        return self


class WeightSyncConfig(Section):
    transport: Literal["shared_memory", "object_store", "nccl", "ipc"]
    lora: Literal["merged", "adapter"]
    timeout_s: Seconds
    probe_tolerance: Annotated[float, Field(gt=0)] | None
    folder: AbsolutePath


class StalenessConfig(Section):
    max_steps_off_policy: Annotated[int, Field(ge=0, le=10)]
    kv_on_update: Literal["keep", "recompute"]


class WarmupConfig(Section):
    enabled: bool
    demonstrator: str
    demonstrations: Annotated[int, Field(ge=1, le=100)]
    steps: NonNegative
    batch_size: Positive
    learning_rate: Annotated[float, Field(gt=0, le=1e-2)]


class DataConfig(Section):
    name: Literal["enterprise_kb", "tables"]
    folder: AbsolutePath | None
    num_documents: Annotated[int, Field(ge=2000, le=500_000)]
    seed: Seed
    train_tasks: Positive
    validation_tasks: Positive
    test_tasks: Positive

    @model_validator(mode="after")
    def _folder_for_tables(self) -> DataConfig:
        if self.name == "tables" and not self.folder:
            raise ValueError("folder is missing; give the folder that holds tasks.parquet and corpus.parquet")
        if self.name != "tables" and self.folder:
            raise ValueError(f"folder={self.folder} is not read by the bundled {self.name}; add data=tables to read it")
        return self


class EvaluationConfig(Section):
    test_at_start: bool
    test_at_end: bool
    test_limit: Positive | None
    temperatures: tuple[Temperature, ...] = Field(min_length=1, strict=False)
    validation_temperature: Temperature
    bootstrap_resamples: Annotated[int, Field(ge=1000)]
    success_threshold: Annotated[float, Field(gt=0, le=1)]
    control: bool
    external_metric: str

    @model_validator(mode="after")
    def _temperatures_once(self) -> EvaluationConfig:
        twice = [temperature for temperature, count in Counter(self.temperatures).items() if count > 1]
        if twice:
            raise ValueError(f"temperatures has {twice[0]:g} twice; give each temperature once")
        return self


class TrackingConfig(Section):
    enabled: bool
    uri: str | None
    experiment: str
    traces_per_step: NonNegative

    @model_validator(mode="after")
    def _no_credentials(self) -> TrackingConfig:
        if self.uri and self.uri != "databricks" and "://" not in self.uri:
            raise ValueError(
                f"uri={self.uri} is no address of a store; give sqlite:////absolute/mlflow.db or the address of a server"
            )
        if self.uri and self.uri.startswith("sqlite:///") and not self.uri.startswith("sqlite:////"):
            raise ValueError(
                f"uri={self.uri} names a relative file, but Ray runs a job in its own copy of the working directory, where it would be lost; "
                f"give an absolute one, with four slashes: sqlite:////absolute/{self.uri.removeprefix('sqlite:///')}"
            )
        if self.uri and "@" in self.uri.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "uri holds credentials, which would be logged; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
            )
        return self


class Config(Section):
    """A whole run."""

    run_name: RunName
    output_dir: AbsolutePath
    seed: Seed
    resume: Literal["auto", "never"]
    dry_run: bool
    model: ModelConfig
    environment: EnvironmentConfig
    search: SearchConfig
    rollout: RolloutConfig
    algorithm: AlgorithmConfig
    training: TrainingConfig
    learner: LearnerConfig
    weight_sync: WeightSyncConfig
    staleness: StalenessConfig
    warmup: WarmupConfig
    data: DataConfig
    evaluation: EvaluationConfig
    tracking: TrackingConfig
    cluster: ClusterConfig

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        rollout, environment = self.rollout, self.environment
        if rollout.sampling_top_p < 1:
            raise ValueError(
                f"rollout.sampling_top_p={rollout.sampling_top_p}: below 1 the sampler's log-probs are renormalised over fewer "
                f"tokens than the learner's, so algorithm.loss={self.algorithm.loss.name} would be biased; set rollout.sampling_top_p=1"
            )
        external = self.search.external
        if external is not None:
            without = [name for name in environment.tools if name != "read_document" and name not in external.tools]
            if without:
                raise ValueError(
                    f"search.external.tools has no {without[0]}, which environment.tools={list(environment.tools)} offers; add it or "
                    f"set environment.tools=[{', '.join(external.tools)}]"
                )
            if "read_document" in environment.tools and external.document_url is None:
                raise ValueError(
                    "search.external.document_url is not set, but environment.tools offers read_document; set it"
                )
        if self.model.dtype == "bfloat16" and self.learner.zero_stage == 0:
            raise ValueError(
                "learner.zero_stage=0 would sum the gradients of model.dtype=bfloat16 in bfloat16; set learner.zero_stage=1 or more, "
                "which keep float32 masters"
            )
        if self.training.drop_groups_without_signal and self.algorithm.advantage.name in UNGROUPED_ADVANTAGES:
            raise ValueError(
                f"training.drop_groups_without_signal=true would drop groups that algorithm.advantage={self.algorithm.advantage.name} learns "
                "from, since it compares more than the rewards of a group; set it to false"
            )
        if self.training.trained_per_group is not None and (
            self.algorithm.advantage.name in UNGROUPED_ADVANTAGES or self.algorithm.loss.name == "distillation"
        ):
            raise ValueError(
                f"training.trained_per_group={self.training.trained_per_group} chooses episodes by the rewards of their group, which "
                f"algorithm.advantage={self.algorithm.advantage.name} with algorithm.loss={self.algorithm.loss.name} does not compare; leave "
                "it out"
            )
        if self.training.drop_groups_without_signal and self.algorithm.loss.name == "distillation":
            raise ValueError(
                "training.drop_groups_without_signal=true judges groups by rewards, which algorithm.loss=distillation does not read; set it "
                "to false"
            )
        if self.training.group_size > rollout.rollout_max_concurrency:
            raise ValueError(
                f"training.group_size={self.training.group_size} is over rollout.rollout_max_concurrency={rollout.rollout_max_concurrency}, "
                "but a group is played at once; raise the latter"
            )
        if not self.training.max_steps and not (self.warmup.enabled and self.warmup.steps):
            raise ValueError(
                "training.max_steps=0 trains by the warm-up alone, but there is none; set warmup=demonstrations or warmup=judgements, or "
                "raise training.max_steps"
            )
        if self.training.max_steps and self.learner.lora.dropout:
            raise ValueError(
                f"learner.lora.dropout={self.learner.lora.dropout} makes the learner's log-probs differ from those of the engine, which has "
                "none, so every ratio would be noise; set it to 0, or training.max_steps=0 for supervised fine-tuning"
            )
        if not self.training.max_steps and self.evaluation.control:
            raise ValueError(
                "evaluation.control=true clones for as long as reinforcement learning took, but training.max_steps=0 has none; set it to "
                "false"
            )
        if not self.training.max_steps and self.learner.reference is not None:
            raise ValueError(
                f"learner.reference={self.learner.reference} scores what reinforcement learning samples, but training.max_steps=0 has none; "
                "leave it null"
            )
        if self.evaluation.control and not self.warmup.enabled:
            raise ValueError(
                "evaluation.control=true clones on the demonstrations of the warm-up, but warmup.enabled=false has none; set "
                "warmup=demonstrations or warmup=judgements, or evaluation.control=false"
            )
        needs_reference = self.algorithm.kl.coefficient > 0 or self.algorithm.advantage.kl_beta > 0
        if (
            self.training.max_steps
            and (needs_reference or self.algorithm.loss.name == "distillation")
            and self.learner.reference is None
        ):
            raise ValueError(
                f"learner.reference is not set, but algorithm.loss={self.algorithm.loss.name} with kl.coefficient="
                f"{self.algorithm.kl.coefficient} and advantage.kl_beta={self.algorithm.advantage.kl_beta} needs it; set "
                "learner.reference=start for the policy that reinforcement learning starts from, or a folder or hub id"
            )
        replies = environment.max_turns * rollout.sampling_max_tokens
        if replies >= rollout.max_sequence_length:
            raise ValueError(
                f"rollout.max_sequence_length={rollout.max_sequence_length}: environment.max_turns={environment.max_turns} replies of "
                f"rollout.sampling_max_tokens={rollout.sampling_max_tokens} alone need {replies} tokens; raise it or lower the others"
            )
        if self.cluster.device == "cuda" and (self.rollout.gpus_per_worker <= 0 or self.learner.gpus_per_rank <= 0):
            raise ValueError(
                "cluster.device=cuda needs rollout.gpus_per_worker and learner.gpus_per_rank over 0; set rollout=gpu and learner=gpu"
            )
        check_memory(rollout, self.cluster)
        transport = self.weight_sync.transport
        if transport in ("nccl", "ipc") and self.cluster.device != "cuda":
            raise ValueError(
                f"weight_sync.transport={transport} moves weights between GPUs, but cluster.device={self.cluster.device}; set "
                "weight_sync=shared_memory, or cluster=gpu"
            )
        if transport == "ipc" and (
            self.learner.num_ranks != 1
            or self.rollout.num_workers != 1
            or self.learner.gpus_per_rank + self.rollout.gpus_per_worker > 1
        ):
            raise ValueError(
                "weight_sync.transport=ipc shares the memory of one GPU between one learner rank and one worker, but "
                f"learner.num_ranks={self.learner.num_ranks}, rollout.num_workers={self.rollout.num_workers} and together they ask for "
                f"{self.learner.gpus_per_rank + self.rollout.gpus_per_worker:g} GPUs; set all three to at most 1, or weight_sync=nccl"
            )
        rank = self.learner.lora.lora_rank
        if self.weight_sync.lora == "adapter" and (rank not in ADAPTER_RANKS or transport in ("nccl", "ipc")):
            raise ValueError(
                f"weight_sync.lora=adapter sends LoRA adapters of a rank among {', '.join(map(str, ADAPTER_RANKS))} through a file, but "
                f"learner.lora.lora_rank={rank} and weight_sync.transport={transport}; set weight_sync.lora=merged, or such a rank with "
                "weight_sync=shared_memory or object_store"
            )
        return self


_FREE = {
    "dry_run", "resume", "output_dir", "run_name", "tracking", "cluster", "weight_sync", "staleness",
    "training.max_steps", "training.max_epochs", "training.save_every", "training.keep_checkpoints", "training.val_every",
    "training.val_at_start", "training.straggler_timeout_s", "training.step_timeout_s", "learner.start_timeout_s",
    "learner.num_threads", "learner.micro_batch_tokens", "learner.cpus_per_rank", "learner.drift_alarm", "evaluation.control", "evaluation.test_at_start",
    "evaluation.test_at_end", "evaluation.bootstrap_resamples", "evaluation.external_metric", "evaluation.success_threshold", "search.port", "search.host", "search.token_env", "search.timeout_s", "search.min_replicas", "search.max_replicas",
    "search.max_queued_requests", "search.max_batch", "search.memory_gib",
    "search.start_timeout_s", "search.build_timeout_s", "search.cpus_per_replica", "search.threads_per_replica", "search.gpus_per_replica", "search.device",
    "search.max_ongoing_requests",
}  # fmt: skip
_BOUND_ROLLOUT = {"sampling_max_tokens", "max_sequence_length", "temperature", "sampling_top_p"}


def bound_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, by dotted name, that a run must keep when it is resumed: those that its numbers depend on."""
    bound: dict[str, Any] = {}
    for section, values in settings.items():
        if section in _FREE:
            continue
        for name, value in values.items() if isinstance(values, Mapping) else [("", values)]:
            dotted = f"{section}.{name}" if name else section
            if dotted == "search.external" and value is not None:
                value = {key: setting for key, setting in value.items() if key not in ENDPOINT_ACCESS}
            if dotted not in _FREE and (section != "rollout" or name in _BOUND_ROLLOUT):
                bound[dotted] = value
    return bound


def validate(settings: Mapping[str, Any]) -> Config:
    """Checks a composed configuration. Raises ConfigError for the first setting that is wrong."""
    return check_settings(Config, settings)


_Schema = TypeVar("_Schema", bound=BaseModel)


def check_settings(schema: type[_Schema], settings: Mapping[str, Any], prefix: str = "") -> _Schema:
    """Checks values against a schema whose settings are named `prefix` + name. Raises ConfigError for the first wrong one."""
    try:
        return schema.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0], schema, prefix)) from error


def tracking_uri(config: Config) -> str:
    """The configured URI, or a SQLite file beside the runs' folders."""
    return config.tracking.uri or f"sqlite:///{Path(config.output_dir).parent / 'mlflow.db'}"


_MENDS = {
    "greater_than_equal": "give at least {ge}",
    "greater_than": "give more than {gt}",
    "less_than_equal": "give at most {le}",
    "less_than": "give less than {lt}",
    "finite_number": "give a finite number",
    "int_type": "give a whole number",
    "float_type": "give a number",
    "bool_type": "give true or false",
    "string_type": "give a text",
    "tuple_type": "give a list",
    "dict_type": "give names with values",
    "model_type": "give its settings by name",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
    "literal_error": "choose {expected}",
}
"""What to do about a value, by the kind of pydantic's error."""


def _sentence(problem: Mapping[str, Any], schema: type[BaseModel], prefix: str) -> str:
    names = [str(part) for part in problem["loc"] if part != "[key]"]
    location = (prefix + ".".join(names)).rstrip(".")
    kind = problem["type"]
    if kind == "extra_forbidden":
        known = _known_names(schema, problem["loc"][:-1])
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}."
        return f"{location} is no setting; {hint}"
    if kind == "missing":
        return f"{location} is not set; set it on the command line or in an experiment of hydra_conf/experiment."
    if kind == "value_error":
        message = str(problem["ctx"]["error"])
        return f"{location}: {message}." if location else f"{message}."
    mend = _MENDS[kind].format(**problem.get("ctx", {})) if kind in _MENDS else problem["msg"]
    return f"{location}={problem['input']!r} is refused; {mend}."


def _known_names(schema: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    section: Any = schema
    for part in location:
        fields = getattr(section, "model_fields", {})
        # A mapping from names to sections has no fields; its last argument is the section.
        section = fields[part].annotation if part in fields else get_args(section)[-1]
        if isinstance(section, UnionType):
            section = next(choice for choice in get_args(section) if hasattr(choice, "model_fields"))
    return sorted(section.model_fields)
