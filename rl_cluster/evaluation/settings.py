"""The schema of `python -m rl_cluster.evaluate`; it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from rl_cluster.config import (
    DataConfig,
    EnvironmentConfig,
    NonNegative,
    Positive,
    SearchConfig,
    Seconds,
    Section,
    TrackingConfig,
    check_settings,
)
from rl_cluster.config_rollout import ClusterConfig, RolloutConfig, check_memory
from rl_cluster.config_types import AbsolutePath, RunName, Seed, Temperature, UserPath
from rl_cluster.errors import ConfigError
from rl_cluster.evaluation.measures import MeasureSettings, Prices


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
"""Of a system or a drift; files are named after it."""
Price = Annotated[float, Field(ge=0)]


class PriceConfig(Section):
    """In one currency for all systems."""

    input_per_million: Price
    output_per_million: Price
    per_search: Price
    per_second: Price

    def prices(self) -> Prices:
        return Prices(self.input_per_million, self.output_per_million, self.per_search, self.per_second)


class BaselineConfig(Section):
    kind: Literal["baseline"]
    tool: Literal["bm25_search", "vector_search", "hybrid_search"]
    prices: PriceConfig


class ScriptedConfig(Section):
    kind: Literal["scripted"]
    prices: PriceConfig


class ModelSystemConfig(Section):
    kind: Literal["model"]
    path: UserPath
    dtype: Literal["float32", "bfloat16"]
    tool_format: str
    prices: PriceConfig


class Connection(Section):
    """A chat endpoint. `key_variable` names the environment variable that holds the key; null where none is needed.

    `token_field`: what the endpoint calls the most tokens of a reply; `send_temperature`: whether it takes one;
    `busy_wait_s`: how long a request waits in all while the endpoint answers 429.
    """

    url: Annotated[str, Field(pattern=r"^https?://")]
    model: str
    key_variable: str | None
    timeout_s: Seconds
    max_retries: NonNegative
    busy_wait_s: Seconds
    token_field: Literal["max_tokens", "max_completion_tokens"]
    send_temperature: bool
    concurrency: Positive
    native_tools: bool

    @model_validator(mode="after")
    def _no_credentials(self) -> Connection:
        if "@" in self.url.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "url holds credentials, which would be logged; name an environment variable in key_variable"
            )
        return self


class EndpointConfig(Connection):
    """`send_confidential`: whether questions and documents of confidential data sets may be sent to it."""

    kind: Literal["endpoint"]
    max_tokens: Positive
    send_confidential: bool
    prices: PriceConfig


SystemConfig = BaselineConfig | ScriptedConfig | ModelSystemConfig | EndpointConfig
_KINDS: dict[str, type[SystemConfig]] = {
    "baseline": BaselineConfig,
    "scripted": ScriptedConfig,
    "model": ModelSystemConfig,
    "endpoint": EndpointConfig,
}


class NumbersConfig(Section):
    """How numbers are made of episodes, and under which drifts they are made once more.

    `pass_k`: null for 1, 2, 4 and so on up to the samples.
    """

    success_threshold: Annotated[float, Field(gt=0, le=1)]
    pass_k: tuple[Positive, ...] | None = Field(strict=False)
    bootstrap_resamples: Annotated[int, Field(ge=1000)]
    drift: dict[Name, dict[str, Any]]


class EvaluateConfig(Section):
    """One evaluation. `systems` are checked one by one, see `systems_of`."""

    run_name: RunName
    output_dir: AbsolutePath
    seed: Seed
    resume: Literal["auto", "never"]
    dry_run: bool
    folders: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(strict=False)]
    split: Literal["train", "validation", "test"]
    limit: Positive | None
    samples: Annotated[int, Field(ge=1, le=128)]
    temperature: Temperature
    reference: str | None
    repeats: dict[Name, list[str]]
    evaluation: NumbersConfig
    systems: dict[Name, dict[str, Any]] = Field(min_length=1)
    environment: EnvironmentConfig
    search: SearchConfig
    rollout: RolloutConfig
    data: DataConfig
    tracking: TrackingConfig
    cluster: ClusterConfig

    @model_validator(mode="after")
    def _fits_together(self) -> EvaluateConfig:
        if self.reference is not None and self.reference not in self.systems:
            raise ValueError(
                f"reference={self.reference} is none of the systems {', '.join(self.systems)}; name one of them"
            )
        for recipe, runs in self.repeats.items():
            unknown = next((run for run in runs if run not in self.systems), None)
            if unknown is not None:
                raise ValueError(
                    f"repeats.{recipe} names {unknown}, which is none of the systems {', '.join(self.systems)}"
                )
        check_memory(self.rollout, self.cluster)
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples={self.samples} at temperature=0 would be the same episode over and over; set temperature over 0 or samples=1"
            )
        beyond = next((k for k in self.evaluation.pass_k or () if k > self.samples), None)
        if beyond is not None:
            raise ValueError(
                f"evaluation.pass_k={list(self.evaluation.pass_k or ())}: pass@{beyond} needs {beyond} episodes of each question, but "
                f"samples={self.samples}; raise samples or leave {beyond} out"
            )
        for name in ("shards", "max_replicas"):
            if getattr(self.search, name) > 1:
                raise ValueError(
                    f"search.{name}={getattr(self.search, name)} spreads a search service, but an evaluation searches each index whole in "
                    f"its own process; set search.{name}=1"
                )
        return self

    @property
    def folder(self) -> Path:
        """Where everything of this evaluation is written."""
        return Path(self.output_dir)

    @property
    def measure_settings(self) -> MeasureSettings:
        numbers = self.evaluation
        pass_k = numbers.pass_k
        if pass_k is None:
            pass_k = tuple(2**power for power in range(self.samples.bit_length()))
        return MeasureSettings(numbers.success_threshold, pass_k, numbers.bootstrap_resamples, self.seed)


def systems_of(config: EvaluateConfig) -> dict[str, SystemConfig]:
    """The checked systems by name, the reference first. Raises ConfigError."""
    checked: dict[str, SystemConfig] = {}
    for name, values in config.systems.items():
        kind = values.get("kind")
        if kind not in _KINDS:
            raise ConfigError(f"systems.{name}.kind={kind!r} is unknown; choose one of {', '.join(_KINDS)}.")
        checked[name] = check_settings(_KINDS[str(kind)], values, f"systems.{name}.")
    first = config.reference or next(iter(checked))
    return {first: checked[first], **{name: system for name, system in checked.items() if name != first}}


def check_evaluate(settings: Mapping[str, Any]) -> EvaluateConfig:
    """Checks composed values, systems and drifts too. Raises ConfigError for the first setting that is wrong."""
    config = check_settings(EvaluateConfig, settings)
    systems_of(config)
    if config.evaluation.drift:
        from rl_cluster.evaluation.drift import get_drift

        for name, values in config.evaluation.drift.items():
            get_drift(values, f"evaluation.drift.{name}.")
    return config


def searched_tools(config: EvaluateConfig, systems: Mapping[str, SystemConfig]) -> list[str]:
    """The tools that some system asks, in the order of their names."""
    tools = {system.tool for system in systems.values() if isinstance(system, BaselineConfig)}
    if any(not isinstance(system, BaselineConfig) for system in systems.values()):
        tools |= set(config.environment.tools)
    return sorted(tools)
