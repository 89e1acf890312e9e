"""What README.md and the other guides tell users to type: commands that parse, settings that exist, targets that are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rl_cluster.composition import load_config

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ["README.md", "CONTRIBUTING.md", "cluster_configs/README.md"]
HYDRA_COMMANDS = ("train", "evaluate", "serve", "prepare")


def text_of(guide: str) -> str:
    return (ROOT / guide).read_text(encoding="utf-8")


def commands(guide: str) -> list[list[str]]:
    """The words of each command line in a block of code, continued lines joined, as a shell would split them."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text_of(guide), re.S | re.M):
        if language:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            found.append(shlex.split(line.replace("$HOME", "/home/me"), comments=True))
    return [words for words in found if words]


def test_readme_commands_are_taken_by_hydra() -> None:
    checked = 0
    for words in (words for guide in GUIDES for words in commands(guide)):
        modules = [place for place, word in enumerate(words) if re.fullmatch(r"rl_cluster\.\w+", word)]
        if not modules or words[modules[0]].partition(".")[2] not in HYDRA_COMMANDS:
            continue
        overrides = [word for word in words[modules[0] + 1 :] if word != "..."]
        OverridesParser.create().parse_overrides(overrides)
        checked += 1
    assert checked >= 5


@pytest.mark.parametrize("guide", GUIDES)
def test_guide_shell_does_not_expand_a_home_behind_an_equals_sign(guide: str) -> None:
    assert re.findall(r"\w=~/\S*", text_of(guide)) == []


def test_readme_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {target for guide in GUIDES for target in re.findall(r"(?:`|^)make ([a-z][a-z-]+)", text_of(guide), re.M)}
    assert {"train", "test"} <= named
    assert [target for target in sorted(named) if not re.search(rf"^{target}:", makefile, re.M)] == []


def test_readme_settings_exist() -> None:
    """Every dotted setting of a run that stands in code quotes."""
    config = load_config([])
    sections = set(type(config).model_fields)
    quoted = re.findall(r"`([^`\n]+)`", text_of("README.md"))
    names = {name for part in quoted for name in re.findall(r"(?<![\w./~-])([a-z_]+(?:\.[a-z_]+)+)(?=[=` ,]|$)", part)}
    checked = 0
    for name in sorted(names):
        section, *rest = name.split(".")
        if section not in sections or name.startswith(
            "evaluation.drift."
        ):  # the latter are settings of rl_cluster.evaluate
            continue
        value: Any = getattr(config, section)
        for part in rest:
            if value is None:
                break  # a section that is off by default, such as search.external
            assert hasattr(value, part), f"{name} is no setting"
            value = getattr(value, part)
        checked += 1
    assert checked >= 15
