"""Data sets into tables: `python -m rl_cluster.prepare dataset=wands source=FOLDER out=FOLDER`.

Writes `tasks.parquet`, `corpus.parquet` and `manifest.json`; `data=tables data.folder=OUT` trains on them.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig
from rich.console import Console

from rl_cluster.composition import Application
from rl_cluster.config import check_settings
from rl_cluster.datasets.converters import get_converter
from rl_cluster.datasets.manifest import is_confidential
from rl_cluster.datasets.preparation.hub import locate
from rl_cluster.datasets.preparation.mixture import mix
from rl_cluster.datasets.preparation.pipeline import Options, convert
from rl_cluster.datasets.preparation.progress import PreparationProgress
from rl_cluster.datasets.preparation.settings import (
    MixtureSettings,
    PrepareConfig,
    check_prepare,
    converter_settings,
)
from rl_cluster.datasets.preparation.workspace import ROWS, workspace
from rl_cluster.errors import ConfigError, RLClusterError
from rl_cluster.evaluation.statistics import FEW_QUESTIONS
from rl_cluster.interrupts import raise_on

PREPARE = Application("prepare", "rl_cluster.prepare", check_prepare, required=("dataset",))


@hydra.main(version_base="1.3", config_path="pkg://hydra_conf", config_name="prepare")
def _main(settings: DictConfig) -> None:
    sys.exit(run(PREPARE.checked(settings)))


def run(config: PrepareConfig) -> int:
    """Prepares one data set or a mixture and prints what came of it; the process's exit code."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    try:
        with PreparationProgress(console) as progress:
            manifest = prepare(config, progress)
    except RLClusterError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except OSError as error:
        text = f"error: out={config.out}: it cannot be written ({error}); make room there or choose another folder."
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; what is complete is kept, and the same command goes on from there", soft_wrap=True)
        return 130
    for line in summary(manifest, Path(config.out)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def prepare(config: PrepareConfig, progress: PreparationProgress) -> dict[str, Any]:
    """Writes the prepared folder `config.out`, whole or not at all, and returns its manifest. Raises DataError, ConfigError."""
    out = Path(config.out).expanduser().absolute()
    others = tuple(Path(other).expanduser() for other in config.compare_with)
    options = Options(
        config.validation_fraction,
        config.test_fraction,
        config.tasks_only,
        others,
        answer_documents=config.answer_documents,
        documents=Path(config.documents).expanduser() if config.documents is not None else None,
    )
    if options.documents is not None and is_confidential(options.documents):
        raise ConfigError(
            f"documents={config.documents} is confidential: its texts must not be trained on or published; choose another folder."
        )
    with workspace(out) as (parts, result):
        if "sets" in config.dataset:
            mixture = check_settings(MixtureSettings, config.dataset, "dataset.")
            return mix(config.source, mixture, options, parts, result, progress)
        settings = converter_settings(config.dataset)
        source = locate(config.source, get_converter(settings.name).CARD, config.revision)
        source.revision = source.revision or config.revision
        return convert(source, settings, options, result, parts / ROWS, progress)


def summary(manifest: dict[str, Any], out: Path) -> list[str]:
    """What a person should know of a prepared folder, line by line."""
    counts = manifest["counts"]
    tasks = {
        split: sum(found.values()) if isinstance(found, dict) else found for split, found in counts["tasks"].items()
    }
    lines = [f"{manifest['title']}: " + ", ".join(f"{number:,} {split}" for split, number in tasks.items()) + " tasks"]
    if "sets" not in manifest:  # a mixture notes it itself
        lines += _few(tasks)
    for name, part in (manifest.get("sets") or {manifest["dataset"]: manifest}).items():
        lines += _set_lines(name, part)
    if "sets" in manifest:
        lines += [
            f"{name}: {set_['tasks']:,} tasks left out: {set_['reason']}" for name, set_ in manifest["left_out"].items()
        ]
        lines += manifest["notes"]
    lines += [
        f"leakage between {' and '.join(found['between'])}: {found['same_question']} questions, "
        f"{found['same_passage']} relevant passages"
        for found in manifest["leakage"]
    ]
    return [*lines, f"written to {out} (manifest.json has every id that was dropped, and why)"]


def _few(tasks: Mapping[str, int]) -> list[str]:
    """What a run on these tasks would be refused for, or could not say. A set without training tasks is for evaluation alone."""
    if not tasks.get("train"):
        return []
    raising = "raise {}_fraction, which holds training tasks out for it, or give more".format
    lines = [
        f"note: {split} has no task, and a training run needs some in each split; {raising(split)}"
        for split in ("validation", "test")
        if not tasks.get(split)
    ]
    for split, telling in (("validation", "which checkpoint is best"), ("test", "a gain")):
        if 0 < (number := tasks.get(split, 0)) < FEW_QUESTIONS:
            asked = "question says" if number == 1 else "questions say"
            lines.append(f"note: {number} {split} {asked} little about {telling}; {raising(split)}")
    return lines


def _set_lines(name: str, manifest: dict[str, Any]) -> list[str]:
    counts = manifest["counts"]
    lines = [
        f"{name}: {sum(counts['documents'].values()):,} documents, {counts['pairs']:,} relevant pairs, {manifest['licence']}"
    ]
    for reason, dropped in manifest["dropped"].items():
        lines.append(f"{name}: {dropped['count']:,} dropped: {reason}")
    for what, times in manifest["merged"].items():
        lines.append(f"{name}: {times:,} {what}")
    if manifest["missing_gold"] and manifest["role"] != "own":  # a note tells of one's own
        lines.append(f"{name}: {len(manifest['missing_gold']):,} tasks have gold documents that the corpus lacks")
    for what, figures in manifest["published"].items():
        if figures["published"] != figures["here"]:
            lines.append(f"{name}: {figures['here']:,} {what}, the publisher states {figures['published']:,}")
    return lines + [f"{name}: {note}" for note in manifest["notes"]]


def as_choice(argument: str) -> str:
    """`dataset=enterprise-rag-bench`, as the set is published, names the choice `enterprise_rag_bench`."""
    return argument.replace("-", "_") if re.fullmatch(r"dataset=[\w-]+", argument) else argument


def main() -> None:
    """Entry point; a wrong command line ends with one sentence and exit code 2. Ctrl-C counts where a shell started this in the
    background too, with the signal ignored."""
    raise_on(signal.SIGINT)
    sys.argv[1:] = map(as_choice, sys.argv[1:])
    PREPARE.check_command_line(sys.argv[1:])
    _main()


if __name__ == "__main__":
    main()
