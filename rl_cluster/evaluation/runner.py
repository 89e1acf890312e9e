"""Plays systems on question sets, undisturbed and under every drift, and makes the report of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_cluster.datasets.task import Task
from rl_cluster.environments.search import SearchEnvironmentSettings
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.comparison import compare_systems
from rl_cluster.evaluation.confidential import withhold_task, withhold_texts
from rl_cluster.evaluation.drift.base import Drift
from rl_cluster.evaluation.holm import holm
from rl_cluster.evaluation.measures import MeasureSettings, Prices
from rl_cluster.evaluation.players.base import Player
from rl_cluster.evaluation.records import record_of
from rl_cluster.evaluation.report import ReportContent, Views, first_views, question_views
from rl_cluster.evaluation.summary import EpisodeRecord, compare
from rl_cluster.evaluation.world import QuestionSet, World, open_world
from rl_cluster.retrieval.devices import Devices
from rl_cluster.retrieval.settings import IndexSettings

Say = Callable[[str], None]


@dataclass
class Played:
    """Episodes of every system, over all question sets."""

    records: dict[str, list[EpisodeRecord]] = field(default_factory=dict)
    trajectories: dict[str, list[Trajectory]] = field(default_factory=dict)
    views: dict[str, Views] = field(default_factory=dict)

    def add(
        self, system: str, tasks: Sequence[Task], trajectories: Sequence[Trajectory], confidential: bool
    ) -> list[EpisodeRecord]:
        """`tasks` and `trajectories` in one order; returns the new records. Of `confidential` ones no text is kept."""
        records = [record_of(trajectory, task) for task, trajectory in zip(tasks, trajectories, strict=True)]
        if confidential:
            trajectories = [withhold_texts(played, task) for task, played in zip(tasks, trajectories, strict=True)]
        self.records.setdefault(system, []).extend(records)
        self.trajectories.setdefault(system, []).extend(trajectories)
        self.views.setdefault(system, {}).update(first_views(tasks, trajectories))
        return records


@dataclass
class Evaluation:
    """What was played: undisturbed under the key None, and under each drift by its name, by those whom it applies to.

    The tasks are those that may be shown: without the texts of confidential ones.
    """

    tasks: list[Task] = field(default_factory=list)
    played: dict[str | None, Played] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """`stages` open the players that run together, one stage after another: engines of several models need not fit at once.

    `index_settings` makes the settings of an index from the locales of its documents, or of its tasks where they say none;
    `indexes` is where indexes are kept.
    """

    stages: Sequence[Callable[[], AbstractAsyncContextManager[Mapping[str, Player]]]]
    drifts: Mapping[str, Drift]
    environment: SearchEnvironmentSettings
    index_settings: Callable[[Sequence[str]], IndexSettings]
    indexes: Path
    samples: int
    seed: int
    devices: Devices = field(default_factory=Devices)


async def evaluate_systems(sets: Sequence[QuestionSet], plan: Plan, say: Say) -> Evaluation:
    """Set after set, so that one index at a time is in memory. Raises DataError and SearchRequestError as `open_world`."""
    evaluation = Evaluation(
        [withhold_task(task) if questions.confidential else task for questions in sets for task in questions.tasks]
    )
    for stage in plan.stages:
        async with stage() as players:
            for questions in sets:
                await _on_set(questions, players, plan, evaluation, say)
    return evaluation


async def _on_set(
    questions: QuestionSet, players: Mapping[str, Player], plan: Plan, evaluation: Evaluation, say: Say
) -> None:
    corpus = await asyncio.to_thread(questions.read_corpus)
    settings = plan.index_settings(corpus.locales or sorted({task.locale for task in questions.tasks}))
    drifts: dict[str | None, Drift] = {None: Drift(), **plan.drifts}
    for name, drift in drifts.items():
        where = f"{questions.dataset}, {name}" if name else questions.dataset
        met = {system: player for system, player in players.items() if drift.applies_to(player.tool_format)}
        if len(met) < len(players):
            say(f"{where}: does not apply to {', '.join(system for system in players if system not in met)}")
        if not met:
            continue
        say(f"{where}: {len(questions.tasks)} questions, {len(corpus)} documents")
        world = await asyncio.to_thread(
            open_world, questions, corpus, drift, plan.environment, settings, plan.indexes, plan.seed, plan.devices
        )
        played = evaluation.played.setdefault(name, Played())
        for system, player in met.items():
            tasks = [task for task in world.tasks for _ in range(plan.samples)]
            records = played.add(system, tasks, await _play(player, world, tasks), questions.confidential)
            score = sum(record.score for record in records) / len(records)
            lost = sum(record.outcome.is_infrastructure_failure for record in records)
            note = f", {lost} episodes lost to infrastructure" if lost else ""
            say(f"{where}: {system} nDCG@10 {score:.3f}{note}")


async def _play(player: Player, world: World, tasks: Sequence[Task]) -> list[Trajectory]:
    """One episode per entry of `tasks`, in their order."""
    gate = asyncio.Semaphore(player.concurrency)

    async def one(number: int, task: Task) -> Trajectory:
        async with gate:
            return await player.play(world, task, number)

    return list(await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks))))


def report_of(
    title: str,
    systems: Sequence[str],
    evaluation: Evaluation,
    settings: MeasureSettings,
    prices: Mapping[str, Prices],
    drifts: Mapping[str, Drift],
    repeats: Mapping[str, Sequence[str]],
    facts: dict[str, str],
) -> ReportContent:
    """The other `systems` against the first of them, the last one foremost, and each drift against the undisturbed run of the same system."""
    undisturbed = evaluation.played[None]
    pairs = [(systems[0], other) for other in systems[1:]]
    comparison = compare_systems(
        {name: undisturbed.records[name] for name in systems}, pairs, settings, prices, repeats
    )
    main = pairs[-1] if pairs else None
    comparison["pairs"].sort(key=lambda pair: pair["after"] != (main or ("", ""))[1])
    return ReportContent(
        title=title,
        comparison=comparison,
        facts=facts,
        questions=question_views(evaluation.tasks, undisturbed.views, main),
        drifts=[
            _drift(name, drift, undisturbed, evaluation.played.get(name, Played()), settings)
            for name, drift in drifts.items()
        ],
    )


def _drift(name: str, drift: Drift, undisturbed: Played, played: Played, settings: MeasureSettings) -> dict[str, Any]:
    return {
        "name": name,
        "description": drift.description,
        "systems": _against_undisturbed(undisturbed, played, settings),
        "does_not_apply": [system for system in undisturbed.records if system not in played.records],
    }


def _against_undisturbed(undisturbed: Played, drifted: Played, settings: MeasureSettings) -> dict[str, Any]:
    found = {
        system: compare(undisturbed.records[system], records, settings.resamples, settings.seed).as_json()
        for system, records in drifted.records.items()
    }
    corrected = holm({system: part["p"] for system, part in found.items()})
    for system, part in found.items():
        part["p_holm"] = corrected[system]
        part["injected"] = sum(record.injected for record in drifted.records[system])
    return found
