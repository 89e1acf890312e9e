"""The whole job on a real Ray cluster with a tiny model: vLLM, DeepSpeed, Serve, MLflow (invariants 4, 5, 6, 8)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_cluster.composition import load_config
from rl_cluster.config import Config
from rl_cluster.learning.checkpoint import checkpoint_folder, read_state
from tests.cluster.job_settings import (
    LONG_PROMPTS,
    WORDS_ALONE,
    actor_processes,
    job_overrides,
    tracked_client,
    tracked_runs,
)
from tests.helpers.tiny_models import write_tiny_model


def _below(prefix: str, names: str) -> set[str]:
    return {f"{prefix}/{name}" for name in names.split()}


_SPREAD = "mean std min max"
_LOGPROBS = "zero_count zero_frac " + " ".join(f"nz_{name}" for name in _SPREAD.split())
_REWARDS = (
    f"{_SPREAD} zero_frac pass_at_1 pass_power_1 succeeded_rollouts failed_rollouts num_prompts rollouts_per_prompt "
    f"success_threshold {' '.join(f'{name}_within_groups' for name in _SPREAD.split())}"
)
METRICS = (
    _below(
        "training",
        "epoch global_step num_groups num_trajectories total_tokens num_datums datums_per_trajectory action_tokens_mean "
        "obs_tokens_mean trainable_token_positions nontrainable_token_positions trainable_token_ratio",
    )
    | _below("timing_s", "step training policy_update save_checkpoint eval")
    | _below("rollout/reward", f"{_SPREAD} valid_mean zero_frac")
    | _below("rollout/turns", "mean min max")
    | _below("rollout/tokens", "prompt_mean response_mean response_std response_min response_max")
    | _below("rollout/logprob", f"{_LOGPROBS} zero_per_group")
    | _below("rollout/advantage", f"{_SPREAD} n_positive n_negative")
    | _below(
        "analysis",
        "batch_completion_ratio batch_valid_ratio zero_adv_groups zero_adv_nonzero_reward zero_adv_zero_reward "
        "reward_variance_across_groups mean_group_reward_spread",
    )
    | {
        f"{place}/{name}"
        for place in ("val", "eval")
        for name in _below("reward", _REWARDS) | _below("turns", "mean min max")
    }
    | {f"eval/{name}" for name in _below("tokens", "response_mean response_max") | _below("logprob", _LOGPROBS)}
    | {"system/worker_idle", "system/learner_idle", "staleness/age_max"}
)
"""The names under which a run's numbers are charted; users build dashboards on them."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.usefixtures("ray_cluster")]


def job(output: Path, model: Path, tables: Path, *overrides: str) -> Config:
    return load_config(job_overrides(output, model, tables, *overrides))


def start(config: Config) -> tuple[Any, Any]:
    from actors.coordinator import Coordinator

    coordinator = Coordinator.remote(config)
    return coordinator, coordinator.run.remote()


def events(coordinator: Any) -> list[dict[str, Any]]:
    import ray

    return ray.get(coordinator.events.remote(0), timeout=30)


def wait_for_event(coordinator: Any, result: Any, matches: Any, timeout_s: float) -> None:
    import ray

    deadline = time.monotonic() + timeout_s
    while not any(matches(event) for event in events(coordinator)):
        done, _ = ray.wait([result], timeout=0.2)
        if done:
            ray.get(result)
        assert time.monotonic() < deadline, [event.get("text", event["kind"]) for event in events(coordinator)]


def test_job_asynchronous_then_resumed_trains_each_group_once_within_the_age_bound(
    tmp_path: Path, tiny_model: Path, small_tables: Path
) -> None:
    import ray
    from transformers import AutoModelForCausalLM, AutoTokenizer

    output = tmp_path / "asynchronous"
    limits = ["staleness.max_steps_off_policy=1", "algorithm/loss=cispo", "algorithm/advantage=rloo"]
    limits += ["learner.lora.lora_rank=8", "weight_sync.lora=adapter", "environment.reward=tests.helpers.own_reward"]
    limits += ["training.val_at_start=true", "training.val_every=1", "training.curriculum=difficulty"]
    limits += ["algorithm.kl.coefficient=0.01", "learner.reference=start"]
    coordinator, result = start(job(output, tiny_model, small_tables, "training.max_steps=2", *limits))
    report: Any = ray.get(result, timeout=600)
    ray.kill(coordinator)
    assert report["steps"] == 2
    assert report["max_age"] <= 1
    assert report["ledger"]["trained"] == 4
    assert set(report["paired"]) >= {"ndcg@10", "ci95"}
    assert json.loads((output / "report.json").read_text())["after"]["n"] == 2
    assert "Episodes, turn by turn" in (output / "report.html").read_text()
    assert "after - before" in (output / "report.md").read_text()

    assert [entry["step"] for entry in report["validations"]] == [0, 1, 2]
    best = json.loads((output / "best" / "validation.json").read_text())
    assert best["step"] in (0, 1, 2)
    assert (output / "best" / "model.safetensors").is_file()
    assert (output / "final" / "adapter" / "adapter_model.safetensors").is_file()
    AutoTokenizer.from_pretrained(output / "final")
    AutoModelForCausalLM.from_pretrained(output / "final")
    assert "nDCG@10" in (output / "final" / "README.md").read_text()

    (tracked,) = tracked_runs(tmp_path)
    assert tracked.info.status == "FINISHED"
    metrics = tracked.data.metrics
    assert sorted(METRICS.difference(metrics)) == []
    assert metrics["rollout/reward/min"] >= 0.25
    assert tracked.data.params["staleness.max_steps_off_policy"] == "1"
    client = tracked_client(tmp_path)
    assert {"report.html", "report.json", "report.md"} <= {
        each.path for each in client.list_artifacts(tracked.info.run_id)
    }
    (trace, *_) = client.search_traces(locations=[tracked.info.experiment_id])
    assert {span.span_type for span in trace.data.spans} >= {"LLM"}

    more = ["training.max_steps=3", "evaluation.control=true"]
    coordinator, result = start(job(output, tiny_model, small_tables, *more, *limits))
    resumed: Any = ray.get(result, timeout=600)
    texts = [event.get("text", "") for event in events(coordinator)]
    ray.kill(coordinator)
    assert any("resumed at step 2" in text for text in texts)
    assert resumed["steps"] == 3
    assert resumed["max_age"] <= 1
    assert resumed["ledger"]["trained"] == 6
    assert resumed["control"]["n"] == resumed["paired_control"]["n"] == 2
    assert [run.info.run_id for run in tracked_runs(tmp_path)] == [tracked.info.run_id]
    trained = read_state(checkpoint_folder(output / "checkpoints", 3)).queue["ledger"]["trained"]
    assert len(trained) == 6
    assert sorted(trained.values()) == [1, 1, 2, 2, 3, 3]


def test_job_on_two_ranks_killed_between_checkpoints_loses_no_group_and_says_what_is_made_again(
    tmp_path: Path, tiny_model: Path, small_tables: Path
) -> None:
    """Nothing is cleaned up: actors die with the coordinator, the search application and the journal stay as they are.

    The learner has two ranks, and the model starts as it is.
    """
    import ray

    output = tmp_path / "killed"
    config = job(
        output,
        tiny_model,
        small_tables,
        "training.max_steps=8",
        "training.save_every=4",
        "staleness.max_steps_off_policy=1",
        "learner.num_ranks=2",
        "learner.zero_stage=2",
        "warmup=none",
        WORDS_ALONE,
    )
    coordinator, result = start(config)
    # Several steps before the next checkpoint, so that it is not there yet when the kill arrives.
    wait_for_event(coordinator, result, lambda event: event["kind"] == "step" and event["step"] == 5, 480)
    ray.kill(coordinator, no_restart=True)

    coordinator, result = start(config)
    report: Any = ray.get(result, timeout=600)
    texts = [event.get("text", "") for event in events(coordinator)]
    ray.kill(coordinator)
    assert any("resumed at step 4" in text for text in texts)
    assert any(text.startswith("steps 5 to ") and text.endswith("are made again") for text in texts)
    assert report["steps"] == 8
    trained = read_state(checkpoint_folder(output / "checkpoints", 8)).queue["ledger"]["trained"]
    assert sorted(trained.values()) == sorted([*range(1, 9)] * 2)
    (tracked,) = tracked_runs(tmp_path)
    assert tracked.info.status == "FINISHED"
    assert tracked.data.metrics["training/redone_steps"] >= 1


def test_job_without_reinforcement_learning_fine_tunes_and_evaluates_both_sides(
    tmp_path: Path, small_tables: Path
) -> None:
    """With a model of Qwen3's family, which calls tools in its own format."""
    import ray
    from transformers import AutoModelForCausalLM

    output, tiny_model = tmp_path / "supervised", write_tiny_model("qwen3", tmp_path / "qwen3")
    overrides = [
        "training.max_steps=0",
        "warmup=judgements",
        "warmup.steps=2",
        "rollout.sampling_max_tokens=96",
        WORDS_ALONE,
    ]
    coordinator, result = start(job(output, tiny_model, small_tables, *overrides, *LONG_PROMPTS))
    report: Any = ray.get(result, timeout=600)
    losses = [event["loss"] for event in events(coordinator) if event["kind"] == "supervised"]
    ray.kill(coordinator)
    assert len(losses) == 2
    assert report["steps"] == 0
    assert report["before"]["n"] == report["after"]["n"] == report["paired"]["n"] == 2
    before = AutoModelForCausalLM.from_pretrained(tiny_model).state_dict()
    after = AutoModelForCausalLM.from_pretrained(output / "final").state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_job_synchronous_over_two_corpora_with_workers_and_search_killed_replaces_all_and_trains_age_zero(
    tmp_path: Path, tiny_model: Path, small_tables: Path
) -> None:
    """What they took with them is played again: no episode of it is rewarded, no group of it dropped."""
    import ray

    from tests.helpers.small_data import write_two_corpora

    tables = write_two_corpora(small_tables, tmp_path / "tables")
    output = tmp_path / "synchronous"
    coordinator, result = start(
        job(
            output,
            tiny_model,
            tables,
            "training.max_steps=3",
            "staleness.max_steps_off_policy=0",
            "tracking=none",
            "warmup=judgements",
            "rollout.num_workers=2",
            "rollout.sampling_max_tokens=64",  # a demonstration has the whole question as its query
            WORDS_ALONE,
        )
    )
    wait_for_event(coordinator, result, lambda event: event["kind"] == "step", 480)
    replicas, workers = actor_processes("ServeReplica"), actor_processes("RolloutWorker")
    assert replicas
    assert len(workers) == 2
    for process in [*workers, *replicas]:
        process.kill()
    report: Any = ray.get(result, timeout=600)
    texts = [event.get("text", "") for event in events(coordinator)]
    ray.kill(coordinator)
    assert any("search service is up" in text and "2 indexes" in text for text in texts)
    assert "4 demonstrations are written" in texts
    assert sum("is lost" in text for text in texts) >= 2
    assert sum("is started again" in text for text in texts) >= 2
    assert report["steps"] == 3
    assert report["max_age"] == 0
    assert report["ledger"]["trained"] == 6
    assert report["ledger"]["dropped"] == 0
