"""The command line of prepare: every data set has its settings, and a wrong one is refused in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl_cluster.datasets.converters import converter_names, get_converter
from rl_cluster.datasets.preparation.settings import PrepareConfig
from rl_cluster.errors import ConfigError
from rl_cluster.prepare import PREPARE, as_choice
from tests.helpers.configuration import load

ROOT = Path(__file__).resolve().parents[2]
CHOICES = sorted(path.stem for path in (ROOT / "hydra_conf" / "dataset").glob("*.yaml"))
PLACES = ("source=a", "out=b")


def _refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(PREPARE, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_converters_each_have_a_file_of_settings_and_a_card() -> None:
    assert set(converter_names()) == set(CHOICES) - {"search_agent_mix"}
    for name in converter_names():
        card = get_converter(name).CARD
        assert card.title
        assert card.licence
        assert card.role in ("training", "held out", "own")


@pytest.mark.parametrize("choice", CHOICES)
def test_load_shipped_data_set_loads(choice: str) -> None:
    config = PREPARE.load([f"dataset={choice}", *PLACES])
    assert isinstance(config, PrepareConfig)
    assert (config.validation_fraction, config.tasks_only) == (0.05, False)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([*PLACES], "dataset is not set; add dataset=NAME (one of beir, bright,"),
        (["dataset=wands", "source=a"], "out is not set; add out="),
        (["dataset=wandz", *PLACES], "dataset/wandz is no choice of hydra_conf; available: beir,"),
        (["dataset=browsecomp-plus", *PLACES], "; did you mean 'browsecomp_plus'?"),
        (["dataset=enterprise-rag-bench", *PLACES], "; did you mean 'enterprise_rag_bench'?"),
        (["dataset=wands", *PLACES, "validation_fractio=0.1"], "did you mean 'validation_fraction'?"),
        (["dataset=wands", *PLACES, "validation_fraction=0.6"], "validation_fraction=0.6 is refused"),
        (["dataset=wands", *PLACES, "dataset.gain.Exact=1"], "did you mean 'dataset.gains.Exact'?"),
        (["dataset=wands", *PLACES, "dataset.gains.Exact=-1"], "dataset.gains.Exact=-1 is refused"),
        (["dataset=wands", *PLACES, "+dataset.gains.Good=1"], "dataset.gains.Good='Good' is refused"),
        (["dataset=wands", *PLACES, "~dataset.gains.Partial"], "gains has no Partial"),
        (["dataset=esci", *PLACES, "~dataset.gains.C"], "gains has no C"),
        (["dataset=esci", *PLACES, "dataset.version=medium"], "dataset.version='medium' is refused"),
        (["dataset=esci", *PLACES, "+dataset.colour=red"], "dataset.colour is no setting; known here: examples,"),
        (["dataset=wands", *PLACES, "dataset.name=wand"], "dataset.name='wand' is unknown; choose one of beir,"),
        (["dataset=mlqa", *PLACES, "dataset.contexts=[fr]"], "dataset.contexts.0='fr' is refused"),
        (
            ["dataset=search_agent_mix", *PLACES, "dataset.sets.esci.settings.version=medium"],
            "dataset.sets.esci.settings.version='medium' is refused",
        ),
        (
            ["dataset=search_agent_mix", *PLACES, "+dataset.sets.esci.caps=1"],
            "dataset.sets.esci.caps is no setting; did you mean 'cap'?",
        ),
        (["dataset=search_agent_mix", *PLACES, "dataset.splits=[dev]"], "dataset.splits.0='dev' is refused"),
    ],
)  # fmt: skip
def test_load_wrong_setting_is_refused_in_one_sentence(overrides: list[str], words: str) -> None:
    assert words in _refusal(*overrides)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["dataset=wands", "source=/no/such", "out=x"], ["dataset=wands"], ["--help"]])
def test_command_line_ends_without_a_traceback(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "rl_cluster.prepare", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    output = run.stdout + run.stderr
    assert "Traceback" not in output
    assert run.returncode == (0 if arguments == ["--help"] else 2)
    assert ("error: " in output) == (run.returncode == 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "read"),
    [
        ("dataset=enterprise-rag-bench", "dataset=enterprise_rag_bench"),
        ("dataset=wands", "dataset=wands"),
        ("dataset.label=my-set", "dataset.label=my-set"),
        ("out=/a-b/dataset=x-y", "out=/a-b/dataset=x-y"),
    ],
)
def test_prepare_published_name_of_a_set_is_its_choice(argument: str, read: str) -> None:
    assert as_choice(argument) == read
