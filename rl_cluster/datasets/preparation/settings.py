"""The schema of `python -m rl_cluster.prepare`; the settings of one data set are its converter's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from rl_cluster.config import NonNegative, Section, check_settings
from rl_cluster.datasets.converters import converter_names, get_converter
from rl_cluster.datasets.preparation.converter import ConverterSettings, Split
from rl_cluster.errors import ConfigError

HeldOut = Annotated[float, Field(ge=0, le=0.5)]


class PrepareConfig(Section):
    """What to prepare, from where, to where. `dataset` is checked by its converter, or as a mixture where it has `sets`."""

    dataset: dict[str, Any]
    source: str
    out: str
    revision: str | None
    validation_fraction: HeldOut
    test_fraction: HeldOut
    tasks_only: bool
    compare_with: tuple[str, ...] = Field(strict=False)
    answer_documents: NonNegative
    documents: str | None

    @model_validator(mode="after")
    def _documents_of_one_set(self) -> PrepareConfig:
        if self.documents is not None and "sets" in self.dataset:
            raise ValueError(
                f"documents={self.documents} is for one data set, not for a mixture; prepare that set by itself"
            )
        if self.tasks_only and (self.documents is not None or self.answer_documents):
            what = (
                f"documents={self.documents}"
                if self.documents is not None
                else f"answer_documents={self.answer_documents}"
            )
            raise ValueError(f"{what} needs documents, but tasks_only=true leaves them out; choose one")
        return self


class MixtureSet(Section):
    """One set of a mixture: at most `cap` training tasks, or a share by `weight`; `source` where it lies elsewhere."""

    cap: NonNegative | None
    weight: Annotated[float, Field(gt=0)] | None
    source: str | None
    revision: str | None
    tasks_only: bool
    settings: dict[str, Any]


class MixtureSettings(Section):
    """Several training sets as one. `splits` are the published ones that the mixture keeps.

    `test_fraction` of each set's training tasks is held out as its test split, unless the command line has a test_fraction.
    """

    name: str
    splits: tuple[Split, ...] = Field(strict=False, min_length=1)
    test_fraction: HeldOut
    sets: dict[str, MixtureSet] = Field(min_length=1)

    @model_validator(mode="after")
    def _weights_of_all_or_none(self) -> MixtureSettings:
        without = [name for name, member in self.sets.items() if member.weight is None]
        if without and len(without) < len(self.sets):
            raise ValueError(
                f"sets.{without[0]}.weight is not set, but others are; give a weight to all sets or to none"
            )
        return self


def check_prepare(settings: Mapping[str, Any]) -> PrepareConfig:
    """Checks composed values, those of the data set too. Raises ConfigError for the first setting that is wrong."""
    if "dataset" not in settings:
        raise ConfigError(
            f"dataset is not set; add dataset=NAME (one of {', '.join(converter_names())}, or a mixture)."
        )
    config = check_settings(PrepareConfig, settings)
    if "sets" in config.dataset:
        mixture = check_settings(MixtureSettings, config.dataset, "dataset.")
        for name, member in mixture.sets.items():
            checked = converter_settings(member.settings, f"dataset.sets.{name}.settings.")
            if get_converter(checked.name).CARD.confidential:
                raise ConfigError(
                    f"dataset.sets.{name} is confidential and must never be trained on; leave it out with ~dataset.sets.{name}."
                )
    else:
        converter_settings(config.dataset, "dataset.")
    return config


def converter_settings(values: Mapping[str, Any], prefix: str = "dataset.") -> ConverterSettings:
    """The checked settings of one data set. Raises ConfigError, also where it has no converter."""
    name = values.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{prefix}name={name!r} names no data set; choose one with dataset=NAME.")
    return check_settings(get_converter(name).Settings, values, prefix)
