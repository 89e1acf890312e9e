"""Episodes of a worker over a simulated engine: what is tried again, and how an episode that has no end comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from actors.rollout_worker import RolloutWorker
from rl_cluster.datasets.task import Task
from rl_cluster.environments.hits import FoundDocument
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.episodes.episode import EpisodeLimits, EpisodeParts
from rl_cluster.episodes.formats import get_format
from rl_cluster.episodes.rendering import ChatRenderer
from rl_cluster.episodes.sampling import Sample, SamplingSettings
from rl_cluster.episodes.trajectory import Trajectory, TurnTimes
from rl_cluster.errors import EngineError, Outcome, ToolTimeoutError
from rl_cluster.models.source import resolve_model
from rl_cluster.rewards import get_reward

TASK = Task("t1", "Which runbook covers the north pump?", "kb", {"d1": 1.0})
LIMITS = EpisodeLimits(sampling_max_tokens=64, max_sequence_length=2048, temperature=1.0, top_p=1.0)
PLAIN = get_format("plain")
HANGS = None
Reply = str | Exception | None


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(resolve_model("bundled:smollm2-135m-instruct"))
    return ChatRenderer(tokenizer, PLAIN.observation_role, PLAIN.uses_template_tools)


class Engine:
    """Says what it is told, in the order of the requests, the last for good; `broken_after` requests it is broken."""

    def __init__(self, tokenizer: Any, replies: list[Reply], broken_after: int = 1000) -> None:
        self.tokenizer = tokenizer
        self.replies = replies
        self.broken_after = broken_after
        self.requests = 0
        self.cancelled = 0

    @property
    def broken(self) -> str:
        return "the engine's process died" if self.requests >= self.broken_after else ""

    async def sample(self, prompt: list[int], settings: SamplingSettings) -> Sample:
        self.requests += 1
        reply = self.replies[min(self.requests, len(self.replies)) - 1]
        await asyncio.sleep(0)  # lets the other episodes ask meanwhile
        if isinstance(reply, Exception):
            raise reply
        if reply is HANGS:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        ids = [*self.tokenizer.encode(reply, add_special_tokens=False), self.tokenizer.eos_token_id]
        return Sample(ids, [-0.1] * len(ids), [1] * len(ids), "stop", 0.0, 0.0, 0.0, mixed_cache_tokens=0)


class Search:
    """Finds one document, after a failure where it is given one."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failures = [failure] if failure is not None else []

    async def search(
        self, tool: str, query: str, k: int, excluded: tuple[str, ...], filters: Mapping[str, Any] | None = None
    ) -> list[FoundDocument]:
        if self.failures:
            raise self.failures.pop()
        return [FoundDocument("d1", "Runbook", "the north pump")]


class Stuck(Search):
    """Does not answer one query; its deadline passes after all that can be answered meanwhile is."""

    async def search(
        self, tool: str, query: str, k: int, excluded: tuple[str, ...], filters: Mapping[str, Any] | None = None
    ) -> list[FoundDocument]:
        if query == "stuck":
            for _ in range(1000):
                await asyncio.sleep(0)
            raise ToolTimeoutError("bm25_search did not answer within 30.0 s.")
        return await super().search(tool, query, k, excluded, filters)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.rollout_worker.RETRY_PAUSE_S", 0.0)


Play = Callable[..., tuple[list[Trajectory], Engine]]


@pytest.fixture
def play(renderer: ChatRenderer) -> Play:
    """Plays a group on a worker whose engine says `replies`."""

    def run(
        *replies: Reply, size: int = 1, timeout_s: float = 30.0, search: Search | None = None, broken_after: int = 1000
    ) -> tuple[list[Trajectory], Engine]:
        settings = SimpleNamespace(
            environment=SearchEnvironmentSettings(max_turns=3, k=4, max_k=10),
            index_ids={"kb": "index-7"},
            rollout_timeout=timeout_s,
            rollout_max_retries=2,
        )
        engine = Engine(renderer.tokenizer, list(replies), broken_after)
        worker = RolloutWorker.__ray_metadata__.modified_class("worker-3", settings, None)
        worker.engine = engine
        worker.tool_format = PLAIN
        worker.clients = SimpleNamespace(over=lambda corpus: search or Search())
        worker.parts = EpisodeParts(engine.sample, renderer, PLAIN, get_reward("ndcg"), "worker-3")
        return asyncio.run(worker.run_group("g1", TASK, size, LIMITS)), engine

    return run


@pytest.mark.parametrize(
    ("replies", "search"),
    [
        ([EngineError("a request failed"), "answer: d1"], None),
        (["bm25_search: pump", "answer: d1"], Search(ToolTimeoutError("search did not answer"))),
    ],
    ids=["engine", "search"],
)
def test_run_group_infrastructure_failure_is_tried_again(
    play: Play, replies: list[Reply], search: Search | None
) -> None:
    (trajectory,), _ = play(*replies, search=search)
    assert trajectory.outcome is Outcome.FINISHED
    assert trajectory.attempt == 1
    assert trajectory.reward == 1.0


@pytest.mark.parametrize(
    ("first_try", "search"),
    [
        (["bm25_search: south", EngineError("a request failed")], None),
        (["bm25_search: south"], Search(ToolTimeoutError("search did not answer"))),
    ],
    ids=["engine", "search"],
)
def test_run_group_episode_that_is_tried_again_keeps_nothing_of_the_first_try(
    play: Play, first_try: list[Reply], search: Search | None
) -> None:
    """Every field but the names, times and the number of the try is that of an episode that met no failure."""

    def bare(trajectory: Trajectory) -> Trajectory:
        turns = [replace(turn, times=TurnTimes(), started_at=0.0) for turn in trajectory.turns]
        return replace(trajectory, trajectory_id="", turns=turns, attempt=0, started_at=0.0, finished_at=0.0)

    replies = ["vector_search: north", "bm25_search: pump", "answer: d1"]  # as many as environment.max_turns
    (again,), _ = play(*first_try, *replies, search=search)
    (clean,), _ = play(*replies)
    assert (again.attempt, clean.attempt) == (1, 0)
    assert len(again.turns) == 3
    assert bare(again) == bare(clean)


def test_run_group_failure_in_every_try_comes_back_typed_and_without_reward(play: Play) -> None:
    (trajectory,), engine = play(EngineError("a request failed"))
    assert trajectory.outcome is Outcome.ENGINE_ERROR
    assert (trajectory.attempt, engine.requests) == (2, 3)
    assert trajectory.reward is None
    assert trajectory.error == "a request failed"


def test_run_group_failure_of_the_policy_is_not_tried_again(play: Play) -> None:
    (trajectory,), engine = play("bm25_search: pump")
    assert trajectory.outcome is Outcome.TURN_LIMIT
    assert (trajectory.attempt, engine.requests) == (0, 3)
    assert trajectory.reward == -1.0


def test_run_group_episode_that_hangs_is_cancelled_in_every_try_and_comes_back_typed(play: Play) -> None:
    (trajectory,), engine = play(HANGS, timeout_s=0.02)
    assert trajectory.outcome is Outcome.CANCELLED
    assert trajectory.error == "the episode passed rollout.rollout_timeout=0 s"
    assert (trajectory.attempt, engine.requests, engine.cancelled) == (2, 3, 3)
    named = (trajectory.task_id, trajectory.group_id, trajectory.index_id, trajectory.worker)
    assert named == ("t1", "g1", "index-7", "worker-3")
    assert trajectory.reward is None
    assert 0 < trajectory.started_at <= trajectory.finished_at


def test_run_group_episode_that_fails_leaves_the_others(play: Play) -> None:
    failure = EngineError("a request failed")
    trajectories, engine = play("answer: d1", failure, "answer: d1", "answer: d1", size=3)
    assert [trajectory.attempt for trajectory in trajectories] == [0, 1, 0]
    assert {trajectory.outcome for trajectory in trajectories} == {Outcome.FINISHED}
    assert len({trajectory.trajectory_id for trajectory in trajectories}) == 3
    assert engine.requests == 4


def test_run_group_call_that_always_times_out_among_many_episodes_leaves_the_others(play: Play) -> None:
    calls = ["bm25_search: pump"] * 24
    calls[7] = "bm25_search: stuck"
    trajectories, engine = play(*calls, *["answer: d1"] * 23, "bm25_search: stuck", size=24, search=Stuck())
    stuck = trajectories.pop(7)
    assert (stuck.outcome, stuck.attempt, stuck.reward) == (Outcome.TOOL_TIMEOUT, 2, None)
    assert stuck.error == "bm25_search did not answer within 30.0 s."
    assert {(t.outcome, t.attempt, t.reward) for t in trajectories} == {(Outcome.FINISHED, 0, 1.0)}
    assert engine.requests == 24 + 23 + 2


def test_run_group_broken_engine_ends_the_worker_without_another_try(play: Play) -> None:
    with pytest.raises(EngineError, match=r"^Worker worker-3: the engine's process died$"):
        play(EngineError("the engine's process died"), "answer: d1", broken_after=1)
