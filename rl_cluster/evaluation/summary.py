"""From episodes to the numbers of a system, and from two systems to their difference.

A failed episode has nDCG 0 and stays in the denominator, whoever failed. Failures of the policy make the failure rate;
failures of the infrastructure are counted apart, and no failure rate hides in them or leaves with them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_cluster.errors import DataError, Outcome
from rl_cluster.evaluation.power import smallest_detectable_effect
from rl_cluster.evaluation.statistics import (
    MeanInterval,
    PairedDifference,
    bootstrap_mean_ci,
    paired_difference,
    rate_interval,
)


@dataclass(frozen=True)
class EpisodeRecord:
    """What evaluation keeps of one episode. (dataset, task_id) names the question; several rollouts may share it.

    ndcg, recall_10, recall_100 and reciprocal_rank in [0, 1] are those of the final ranking and are read only when the
    episode finished. A question without a positive judgement has no nDCG and is none here: it is dropped when a data set is
    prepared, whose manifest names it. `gold` documents are those of positive gain: how many there are, how many some search showed, how many of these
    were not handed in. An idle search shows no document that earlier ones of the episode did not show; `injected` counts the
    calls that a drift made fail or wait, `handed_in` the documents of the ranking. `billed_s` is the episode's share of the
    seconds in which its system played, `latency_s` how long it took itself, of which it waited `waited_s` for an engine or endpoint
    that was busy. `reward` is the one that the episode was given; None for baselines, for episodes that the infrastructure
    failed, and where a kept file does not tell it. `ranking`: ids as they were handed in, best first.
    """

    task_id: str
    dataset: str
    outcome: Outcome
    ndcg: float
    turns: int
    searches: int
    malformed_calls: int
    sampled_tokens: int
    latency_s: float
    recall_10: float = 0.0
    recall_100: float = 0.0
    reciprocal_rank: float = 0.0
    prompt_tokens: int = 0
    gold: int = 0
    gold_found: int = 0
    gold_left: int = 0
    idle_searches: int = 0
    injected: int = 0
    handed_in: int = 0
    billed_s: float = 0.0
    waited_s: float = 0.0
    reward: float | None = None
    ranking: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return self.outcome is Outcome.FINISHED

    @property
    def score(self) -> float:
        """nDCG, 0 for an episode that did not finish."""
        return self.ndcg if self.finished else 0.0


@dataclass(frozen=True)
class SystemSummary:
    """One system on n questions. Means are means of question means.

    ndcg_finished is over finished episodes alone (None without one). turns, searches, tokens, malformed_calls (per
    episode) and latency_s are over the episodes that the infrastructure let end; None without one.
    """

    n: int
    episodes: int
    ndcg: MeanInterval
    ndcg_finished: MeanInterval | None
    failure_rate: MeanInterval
    failures: dict[str, int]
    infrastructure: dict[str, int]
    turns: MeanInterval | None
    searches: MeanInterval | None
    tokens: MeanInterval | None
    malformed_calls: MeanInterval | None
    latency_s: MeanInterval | None
    datasets: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """JSON types alone; `ci95` belongs to `ndcg@10`, the other intervals carry the name of their mean."""
        result: dict[str, Any] = {
            "ndcg@10": self.ndcg.mean,
            "ci95": self.ndcg.interval,
            "caution": self.ndcg.caution,
            "n": self.n,
            "episodes": self.episodes,
            "failure_rate": self.failure_rate.mean,
            "failure_rate_ci95": self.failure_rate.interval,
            "failures": self.failures,
            "infrastructure": sum(self.infrastructure.values()),
            "infrastructure_by_reason": self.infrastructure,
            "questions_by_dataset": self.datasets,
        }
        means = {
            "ndcg@10_finished": self.ndcg_finished,
            "turns": self.turns,
            "searches": self.searches,
            "tokens": self.tokens,
            "malformed_calls": self.malformed_calls,
            "latency_s": self.latency_s,
        }
        for name, mean in means.items():
            result[name] = None if mean is None else mean.mean
            result[f"{name}_ci95"] = None if mean is None else mean.interval
        return result


@dataclass(frozen=True)
class PairedSummary:
    """What `after` gained over `before` on the same n questions; ranking + failure_avoidance = ndcg, in their means.

    ranking: mean over ALL questions of after - before where both finished (else 0); failure_avoidance: the rest, from
    questions that only one of them finished. lost_before, lost_after: episodes that the infrastructure failed; they score 0, so
    that they are in the difference and in failure_avoidance, though nobody's policy failed.
    """

    n: int
    ndcg: PairedDifference
    ranking: MeanInterval
    failure_avoidance: MeanInterval
    spread: float | None = None
    """Standard deviation of the differences over questions; None for n < 2."""
    lost_before: int = 0
    lost_after: int = 0

    @property
    def caution(self) -> str:
        """What a reader of the difference must know; empty where there is nothing."""
        lost = ""
        if self.lost_before or self.lost_after:
            lost = f"{self.lost_before} and {self.lost_after} episodes lost to infrastructure count 0"
        return "; ".join(filter(None, (self.ndcg.caution, lost)))

    def as_json(self) -> dict[str, Any]:
        """JSON types alone; `ndcg@10` is the difference, `ci95` its interval, `p` its two-sided p-value.

        `smallest_detectable` is what the test finds with a chance of 80% where this is the only one of `comparisons`.
        """
        return {
            "ndcg@10": self.ndcg.mean,
            "ci95": self.ndcg.interval,
            "p": self.ndcg.p,
            "caution": self.caution,
            "n": self.n,
            "lost_before": self.lost_before,
            "lost_after": self.lost_after,
            "difference_sd": self.spread,
            "comparisons": 1,
            "smallest_detectable": smallest_detectable_effect(self.spread, self.n),
            "ranking": self.ranking.mean,
            "ranking_ci95": self.ranking.interval,
            "failure_avoidance": self.failure_avoidance.mean,
            "failure_avoidance_ci95": self.failure_avoidance.interval,
        }


def summarise(records: Sequence[EpisodeRecord], resamples: int = 10_000, seed: int = 0) -> SystemSummary:
    """The numbers of one system. DataError for no records, or a finished one whose nDCG is not in [0, 1]."""
    questions = by_question(records)
    groups = list(questions.values())

    def mean_of(
        value: Callable[[EpisodeRecord], float], keep: Callable[[EpisodeRecord], bool], top: float = math.inf
    ) -> MeanInterval | None:
        kept = [[value(record) for record in group if keep(record)] for group in groups]
        kept = [values for values in kept if values]
        return bootstrap_mean_ci(kept, resamples=resamples, seed=seed, bounds=(0.0, top)) if kept else None

    def ended(record: EpisodeRecord) -> bool:
        return not record.outcome.is_infrastructure_failure

    scores = [[record.score for record in group] for group in groups]
    return SystemSummary(
        n=len(groups),
        episodes=len(records),
        ndcg=bootstrap_mean_ci(scores, resamples=resamples, seed=seed, bounds=(0.0, 1.0)),
        ndcg_finished=mean_of(lambda record: record.ndcg, lambda record: record.finished, 1.0),
        failure_rate=rate_interval([[record.outcome.is_policy_failure for record in group] for group in groups]),
        failures=_counts(record.outcome for record in records if record.outcome.is_policy_failure),
        infrastructure=_counts(record.outcome for record in records if record.outcome.is_infrastructure_failure),
        turns=mean_of(lambda record: record.turns, ended),
        searches=mean_of(lambda record: record.searches, ended),
        tokens=mean_of(lambda record: record.sampled_tokens, ended),
        malformed_calls=mean_of(lambda record: record.malformed_calls, ended),
        latency_s=mean_of(lambda record: record.latency_s, ended),
        datasets=dict(sorted(Counter(dataset for dataset, _ in questions).items())),
    )


def compare(
    before: Sequence[EpisodeRecord], after: Sequence[EpisodeRecord], resamples: int = 10_000, seed: int = 0
) -> PairedSummary:
    """Paired difference after - before. With several rollouts per question every pair of them is averaged over.

    Raises DataError when the two were not evaluated on the same questions, since a question that is missing on one side
    is neither a failure nor a success; and as `summarise`.
    """
    old, new = by_question(before), by_question(after)
    if old.keys() != new.keys():
        one_sided = sorted(old.keys() ^ new.keys())
        raise DataError(
            f"{len(one_sided)} questions were evaluated on one side only (such as {one_sided[0][1]!r} of "
            f"{one_sided[0][0]!r}); evaluate both systems on the same ones."
        )
    old_scores = [[record.score for record in old[key]] for key in old]
    new_scores = [[record.score for record in new[key]] for key in old]
    ranking = [_ranking_part(old[key], new[key]) for key in old]
    differences = [_mean(b) - _mean(a) for a, b in zip(old_scores, new_scores, strict=True)]
    rest = [difference - part for difference, part in zip(differences, ranking, strict=True)]
    return PairedSummary(
        n=len(old),
        ndcg=paired_difference(old_scores, new_scores, resamples=resamples, seed=seed, bounds=(-1.0, 1.0)),
        ranking=bootstrap_mean_ci([[part] for part in ranking], resamples=resamples, seed=seed, bounds=(-1.0, 1.0)),
        failure_avoidance=bootstrap_mean_ci(
            [[part] for part in rest], resamples=resamples, seed=seed, bounds=(-1.0, 1.0)
        ),
        spread=float(np.std(differences, ddof=1)) if len(differences) > 1 else None,
        lost_before=_lost(before),
        lost_after=_lost(after),
    )


def question_scores(records: Sequence[EpisodeRecord]) -> dict[tuple[str, str], float]:
    """Mean score of each question's episodes, by (data set, task id). DataError as `summarise`."""
    return {key: _mean([record.score for record in group]) for key, group in by_question(records).items()}


def _ranking_part(before: Sequence[EpisodeRecord], after: Sequence[EpisodeRecord]) -> float:
    """Mean over all pairs of rollouts of (after - before) where both finished."""
    old = [record.ndcg for record in before if record.finished]
    new = [record.ndcg for record in after if record.finished]
    if not old or not new:
        return 0.0
    return len(old) / len(before) * (len(new) / len(after)) * (_mean(new) - _mean(old))


def by_question(records: Sequence[EpisodeRecord]) -> dict[tuple[str, str], list[EpisodeRecord]]:
    """Records by (data set, task id), in sorted order, so that no result depends on the order of the records."""
    questions: dict[tuple[str, str], list[EpisodeRecord]] = {}
    for record in records:
        if record.finished and not 0.0 <= record.ndcg <= 1.0:
            raise DataError(f"Task {record.task_id!r} of {record.dataset!r} has nDCG {record.ndcg}; it lies in [0, 1].")
        questions.setdefault((record.dataset, record.task_id), []).append(record)
    if not questions:
        raise DataError("There are no episodes to summarise; check the split and the number of questions.")
    return dict(sorted(questions.items()))


def _lost(records: Sequence[EpisodeRecord]) -> int:
    return sum(record.outcome.is_infrastructure_failure for record in records)


def _counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    return dict(sorted(Counter(outcome.value for outcome in outcomes).items()))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
