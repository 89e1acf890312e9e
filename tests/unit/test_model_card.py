"""The README.md of a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_cluster.learning.model_card import write_model_card
from tests.helpers.configuration import load_config

SYSTEM: dict[str, Any] = {"ndcg@10": 0.5, "ci95": [0.4, 0.6], "failure_rate": 0.25, "turns": 3.0, "n": 8}
REPORT = {
    "serving_temperature": 1.0,
    "before": SYSTEM,
    "after": SYSTEM | {"ndcg@10": 0.75, "ci95": None},
    "paired": {"ndcg@10": 0.25, "ci95": [0.125, 0.375], "n": 8},
}


def card(folder: Path, report: dict[str, Any], *overrides: str) -> tuple[dict[str, Any], str]:
    write_model_card(folder, load_config(list(overrides)), 7, report)
    _, head, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), text


def test_card_of_the_bundled_model_names_its_published_base_and_licence(tmp_path: Path) -> None:
    head, text = card(tmp_path, REPORT)
    assert (head["base_model"], head["license"]) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")
    assert "| before reinforcement learning | 0.500 [0.400, 0.600] | 25.0% | 3.0 | 8 |" in text
    assert "| this model | 0.750 | 25.0% | 3.0 | 8 |" in text
    assert "| difference, same questions | +0.250 [+0.125, +0.375] | | | 8 |" in text


def test_card_of_a_model_chosen_by_validation_says_for_what(tmp_path: Path) -> None:
    chosen = {"step": 4.0, "ndcg@10": 0.5, "ci95": (0.4, 0.6), "n": 24}
    overrides = ["evaluation.validation_temperature=0"]
    write_model_card(tmp_path, load_config(overrides), 4, {}, chosen)
    text = " ".join((tmp_path / "README.md").read_text().split())
    assert (
        "nDCG@10 of 0.500 [0.400, 0.600] on 24 questions of the validation split, at temperature 0, after step 4:"
        in text
    )
    write_model_card(tmp_path, load_config(overrides), 4, REPORT)
    assert "## Validation" not in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("readme", "licence"),
    [("---\nlicense: mit\n---\n# x\n", "mit"), ("# no head\n", None), ("---\na: [\n---\n", None), (None, None)],
)
def test_card_of_a_model_from_a_folder_has_its_licence_and_no_path(
    tmp_path: Path, readme: str | None, licence: str | None
) -> None:
    base = tmp_path / "secret" / "my-model"
    base.mkdir(parents=True)
    if readme is not None:
        (base / "README.md").write_text(readme)
    head, text = card(tmp_path, {}, f"model.name={base}")
    assert "base_model" not in head
    assert head.get("license") == licence
    assert "trained with rl_cluster from `my-model`" in text
    assert "secret" not in text
    assert "## Numbers" not in text
