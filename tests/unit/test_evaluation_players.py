"""A model as a system: its episodes, retries, and tasks that are too long for it; and a search that is late for any system."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from rl_cluster.datasets.task import Task
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.episodes.episode import EpisodeLimits
from rl_cluster.episodes.sampling import Sample, SamplingSettings
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import ConfigError, EngineError, Outcome, ToolTimeoutError
from rl_cluster.evaluation.drift.base import Asked, ChangedSearch
from rl_cluster.evaluation.players import model as module
from rl_cluster.evaluation.players.base import Player
from rl_cluster.evaluation.players.baseline import Baseline
from rl_cluster.evaluation.players.model import Model, check_context
from rl_cluster.evaluation.players.scripted import Scripted
from rl_cluster.evaluation.records import record_of
from rl_cluster.evaluation.summary import EpisodeRecord, summarise
from rl_cluster.models.source import resolve_model
from rl_cluster.rewards import Rewards, get_reward
from rl_cluster.tracking.evaluation_metrics import reward_metrics
from tests.helpers.configuration import load_config
from tests.helpers.small_world import SETTINGS, pump_world

LIMITS = EpisodeLimits(sampling_max_tokens=64, max_sequence_length=2048, temperature=0.0, top_p=1.0)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(resolve_model("bundled:smollm2-135m-instruct"))


def player(tokenizer: Any, replies: list[str | Exception], retries: int = 2) -> Model:
    left = list(replies)

    async def sampler(prompt: list[int], settings: SamplingSettings) -> Sample:
        reply = left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        ids = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
        return Sample(ids, [-0.1] * len(ids), [0] * len(ids), "stop", 0.0, 0.0, 0.0, 0)

    return Model(sampler, tokenizer, "plain", LIMITS, get_reward("ndcg"), concurrency=4, retries=retries)


def test_model_searches_and_is_asked_again_after_an_engine_failure(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    world = pump_world(tmp_path)
    model = player(tokenizer, [EngineError("gone"), "bm25_search: north pump", "answer: pumps-0"])
    played = asyncio.run(model.play(world, world.tasks[0], 0))
    assert played.outcome is Outcome.FINISHED
    assert (played.attempt, played.ranking, played.index_id) == (1, ["pumps-0"], world.index_id)
    assert "pumps-0" in played.turns[0].found_ids


def test_record_of_an_episode_has_the_reward_that_a_function_of_ones_own_gave(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)

    def per_turn(task: Task, trajectory: Trajectory) -> Rewards:
        return Rewards({"reward": cast("float", np.float32(-0.25 * len(trajectory.turns)))})

    world = pump_world(tmp_path)
    model = player(tokenizer, ["bm25_search: north pump", "answer: pumps-0", *[EngineError("gone")] * 3])
    model.parts = replace(model.parts, reward=per_turn)
    records = [record_of(asyncio.run(model.play(world, task, 0)), task) for task in world.tasks[:2]]
    assert [record.reward for record in records] == [-0.5, None]
    kept = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(records))), list[EpisodeRecord])
    assert kept == records
    assert reward_metrics(kept[:1], "val", 0.9)["val/reward/mean"] == -0.5
    assert summarise(kept[:1]).ndcg.mean > 0.5
    played = asyncio.run(Baseline("bm25_search").play(world, world.tasks[0], 0))
    assert record_of(played, world.tasks[0]).reward is None


def test_model_whose_engine_keeps_failing_is_a_counted_loss(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    world = pump_world(tmp_path)
    played = asyncio.run(player(tokenizer, [EngineError("gone")] * 3).play(world, world.tasks[0], 0))
    assert played.outcome is Outcome.ENGINE_ERROR


class Late(ChangedSearch):
    async def answer(self, asked: Asked) -> list[FoundDocument]:
        raise ToolTimeoutError("The index did not answer.")


@pytest.mark.parametrize("system", [Baseline("bm25_search"), Scripted()], ids=["baseline", "scripted"])
def test_system_whose_search_is_late_is_a_counted_loss(system: Player, tmp_path: Path) -> None:
    world = pump_world(tmp_path, settings=replace(SETTINGS, tools=("bm25_search", "vector_search")))
    world.client = Late(world.client)
    played = asyncio.run(system.play(world, world.tasks[0], 0))
    assert (played.outcome, played.error) == (Outcome.TOOL_TIMEOUT, "The index did not answer.")


@pytest.mark.parametrize(
    ("length", "positions", "words"),
    [(260, 8192, "max_sequence_length=260 is too short for tiny"), (1280, 512, "is over the 512 positions of tiny")],
)
def test_check_context_tasks_that_do_not_fit_are_refused(
    tokenizer: Any, tmp_path: Path, length: int, positions: int, words: str
) -> None:
    world = pump_world(tmp_path)
    rollout = load_config([]).rollout.model_copy(update={"max_sequence_length": length})
    with pytest.raises(ConfigError, match=words):
        check_context(tokenizer, positions, "tiny", "plain", rollout, SETTINGS, 20, world.tasks, [])
