"""Plays systems on question sets, undisturbed and under every drift, and makes the report of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from rl_cluster.datasets.corpus import Corpus
from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.busy import busy_shares
from rl_cluster.evaluation.comparison import compare_systems, correct_by_holm
from rl_cluster.evaluation.confidential import withhold_task, withhold_texts
from rl_cluster.evaluation.drift.base import Drift
from rl_cluster.evaluation.kept import KeptPart, KeptParts, Part
from rl_cluster.evaluation.measures import MeasureSettings, Prices
from rl_cluster.evaluation.players.base import Player
from rl_cluster.evaluation.records import record_of
from rl_cluster.evaluation.report import ReportContent, Views, first_views, question_views
from rl_cluster.evaluation.summary import EpisodeRecord, compare
from rl_cluster.evaluation.world import QuestionSet, World

Say = Callable[[str], None]


@dataclass
class Played:
    """Episodes of every system over all question sets; `views` only of the undisturbed ones, which a report shows."""

    records: dict[str, list[EpisodeRecord]] = field(default_factory=dict)
    views: dict[str, Views] = field(default_factory=dict)


@dataclass
class Evaluation:
    """What was played: undisturbed under the key None, and under each drift by its name, by those whom it applies to.

    The tasks are those that may be shown: without the texts of confidential ones.
    """

    tasks: list[Task] = field(default_factory=list)
    played: dict[str | None, Played] = field(default_factory=dict)
    traces: dict[str, list[Trajectory]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """Systems that run together; `open` gives the players of those of them that are named."""

    systems: Sequence[str]
    open: Callable[[Sequence[str]], AbstractAsyncContextManager[Mapping[str, Player]]]


@dataclass(frozen=True)
class Plan:
    """`stages` are played one after another: engines of several models need not fit at once.

    `traces`: how many undisturbed episodes of each system the tracker wants, of those that are played now.
    """

    stages: Sequence[Stage]
    drifts: Mapping[str, Drift]
    open_world: Callable[[QuestionSet, Corpus, Drift], Awaitable[World]]
    samples: int
    kept: KeptParts
    traces: int = 0


async def evaluate_systems(sets: Sequence[QuestionSet], plan: Plan, say: Say) -> Evaluation:
    """Plays every part that is not whole on disk, set after set, so that one index at a time is in memory, then reads all.

    Raises DataError, SearchRequestError and ConfigError as `open_world`, and what a player raises; the parts before are on disk
    then.
    """
    evaluation = Evaluation(
        [withhold_task(task) if questions.confidential else task for questions in sets for task in questions.tasks]
    )
    for stage in plan.stages:
        open_parts = [
            part for part in plan.kept.settings if part.system in stage.systems and not plan.kept.is_whole(part)
        ]
        wanted = [system for system in stage.systems if any(part.system == system for part in open_parts)]
        if wanted:
            async with stage.open(wanted) as players:
                for questions in sets:
                    await _on_set(questions, players, plan, evaluation.traces, say)
    for system in (system for stage in plan.stages for system in stage.systems):
        for questions in sets:
            for drift in (None, *plan.drifts):
                _take(evaluation, Part(system, questions.dataset, drift), plan.kept)
    return evaluation


def _take(evaluation: Evaluation, part: Part, kept: KeptParts) -> None:
    found = kept.read(part)
    if found is None or not found.applies:
        return
    played = evaluation.played.setdefault(part.drift, Played())
    played.records.setdefault(part.system, []).extend(found.records)
    views = played.views.setdefault(part.system, {})
    views.update({(part.dataset, task_id): view for task_id, view in found.views.items()})


async def _on_set(
    questions: QuestionSet, players: Mapping[str, Player], plan: Plan, traces: dict[str, list[Trajectory]], say: Say
) -> None:
    worlds = {
        drift: [name for name in players if not plan.kept.is_whole(Part(name, questions.dataset, drift))]
        for drift in (None, *plan.drifts)
    }
    if not any(worlds.values()):
        return
    corpus = await asyncio.to_thread(questions.read_corpus)
    for name, systems in worlds.items():
        drift = Drift() if name is None else plan.drifts[name]
        where = f"{questions.dataset}, {name}" if name else questions.dataset
        met = [system for system in systems if drift.applies_to(players[system].tool_format)]
        unmet = [system for system in systems if system not in met]
        for system in unmet:
            plan.kept.write(Part(system, questions.dataset, name), KeptPart(applies=False))
        if unmet:
            say(f"{where}: does not apply to {', '.join(unmet)}")
        if not met:
            continue
        say(f"{where}: {len(questions.tasks)} questions, {len(corpus)} documents")
        world = await plan.open_world(questions, corpus, drift)
        for system in met:
            part = Part(system, questions.dataset, name)
            kept, played = await _play_part(part, players[system], world, plan, questions.confidential)
            if name is None:
                traces[system] = _first_traces([*traces.get(system, []), *played], plan.traces)
            say(f"{where}: {system} {_result(kept.records, played)}")


async def _play_part(
    part: Part, player: Player, world: World, plan: Plan, confidential: bool
) -> tuple[KeptPart, list[Trajectory]]:
    """Plays a part, or those of its episodes that infrastructure failed before, and keeps it; of `confidential` ones no text.

    Returns all of the part, and the trajectories that were played now.
    """
    before = plan.kept.read(part)
    tasks = [task for task in world.tasks for _ in range(plan.samples)]
    places = list(range(len(tasks))) if before is None else before.lost
    records = {} if before is None else dict(enumerate(before.records))
    trajectories, billed = await _play(player, world, [(place % plan.samples, tasks[place]) for place in places])
    for number, place in enumerate(places):
        records[place] = record_of(trajectories[number], tasks[place], billed[number])
        if confidential:
            trajectories[number] = withhold_texts(trajectories[number], tasks[place])
            records[place] = replace(records[place], ranking=tuple(trajectories[number].ranking))
    views = {} if before is None else before.views
    if part.drift is None:
        firsts = [number for number, place in enumerate(places) if place % plan.samples == 0]
        shown = first_views([tasks[places[number]] for number in firsts], [trajectories[number] for number in firsts])
        views |= {task_id: view for (_, task_id), view in shown.items()}
    kept = KeptPart([records[place] for place in range(len(tasks))], views)
    await asyncio.to_thread(plan.kept.write, part, kept)
    return kept, trajectories


def _first_traces(trajectories: Sequence[Trajectory], limit: int) -> list[Trajectory]:
    """Those that did not finish first, as a tracker takes them."""
    return sorted(trajectories, key=lambda trajectory: trajectory.outcome is Outcome.FINISHED)[:limit]


def _result(records: Sequence[EpisodeRecord], trajectories: Sequence[Trajectory]) -> str:
    """One line on a part: its score, and how episodes failed, with the first error that one of them tells of."""
    score = sum(record.score for record in records) / len(records)
    failed = Counter(record.outcome.value for record in records if not record.finished)
    told = next((trajectory.error for trajectory in trajectories if trajectory.error), "")
    reasons = ", ".join(f"{count} {reason}" for reason, count in failed.most_common())
    return f"nDCG@10 {score:.3f}" + (f", failed: {reasons}" if failed else "") + (f"; such as: {told}" if told else "")


async def _play(
    player: Player, world: World, episodes: Sequence[tuple[int, Task]]
) -> tuple[list[Trajectory], list[float]]:
    """Plays the (sample, task) of `episodes`, in their order; with the seconds that each is billed, its retries included."""
    gate = asyncio.Semaphore(player.concurrency)

    async def one(sample: int, task: Task) -> tuple[Trajectory, tuple[float, float]]:
        async with gate:
            started = time.monotonic()
            played = await player.play(world, task, sample)
            return played, (started, time.monotonic())

    played = await asyncio.gather(*(one(sample, task) for sample, task in episodes))
    return [trajectory for trajectory, _ in played], busy_shares([span for _, span in played])


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
    """The other `systems` against the first of them, the last one foremost, also under each drift, and each drift against the
    undisturbed run of the same system."""
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
        drifts=_drifts(drifts, evaluation, pairs, settings),
    )


def _drifts(
    drifts: Mapping[str, Drift],
    evaluation: Evaluation,
    pairs: Sequence[tuple[str, str]],
    settings: MeasureSettings,
) -> list[dict[str, Any]]:
    """Each drift against the undisturbed run, and each pair of systems under it; p-values of a system, or of a pair, are corrected
    over the drifts that it meets."""
    undisturbed = evaluation.played[None].records
    entries = []
    for name, drift in drifts.items():
        played = evaluation.played.get(name, Played()).records
        systems: dict[str, dict[str, Any]] = {}
        for system, records in played.items():
            compared = compare(undisturbed[system], records, settings.resamples, settings.seed).as_json()
            systems[system] = {**compared, "injected": sum(record.injected for record in records)}
        entries.append(
            {
                "name": name,
                "description": drift.description,
                "systems": systems,
                "pairs": {
                    f"{after} - {before}": compare(
                        played[before], played[after], settings.resamples, settings.seed
                    ).as_json()
                    for before, after in pairs
                    if before in played and after in played
                },
                "does_not_apply": [system for system in undisturbed if system not in played],
            }
        )
    for kind in ("systems", "pairs"):
        for name in dict.fromkeys(name for entry in entries for name in entry[kind]):
            correct_by_holm({entry["name"]: entry[kind][name] for entry in entries if name in entry[kind]})
    return entries
