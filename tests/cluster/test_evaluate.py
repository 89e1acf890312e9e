"""A model in evaluate: its engine on Ray, episodes played beside the index, a report of it against a baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_cluster.evaluate import EVALUATE, run
from tests.cluster.job_settings import WORDS_ALONE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("ray_cluster")
def test_evaluate_model_and_baseline_are_compared_on_the_same_questions(
    tiny_model: Path, small_tables: Path, tmp_path: Path
) -> None:
    config = EVALUATE.load(
        [
            f"folders=[{small_tables}]",
            f"output_dir={tmp_path / 'out'}",
            "system=[bm25,model]",
            f"systems.model.path={tiny_model}",
            "systems.model.prices.output_per_million=1.0",
            WORDS_ALONE,
            "evaluation/drift=[tools_renamed]",
            "evaluation.bootstrap_resamples=1000",
            "search.snippet_words=12",
            "samples=2",
            "rollout.kv_cache_gib=0.125",
            "temperature=1.0",
        ]
    )
    assert run(config) == 0
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    model = written["systems"]["model"]["overall"]
    assert model["episodes"] == 2 * model["n"] == 8
    assert model["infrastructure"] == 0
    assert model["tokens"] > 0
    assert model["measures"]["prompt_tokens"]["mean"] > 0
    assert model["measures"]["cost"]["mean"] > 0
    assert written["pairs"][0]["name"] == "model - bm25"
    assert written["drift"][0]["systems"]["model"]["n"] == 4
    assert (tmp_path / "mlflow.db").exists()
