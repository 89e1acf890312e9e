"""Every number of a system beside its nDCG, each with its interval over questions.

A failed episode has 0 in every quality of its ranking and stays in the mean; turns, tokens, time and money are over the
episodes that the infrastructure let end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_cluster.evaluation.metrics import pass_at_k, pass_power_k
from rl_cluster.evaluation.statistics import bootstrap_mean_ci, quantile_interval, rate_interval
from rl_cluster.evaluation.summary import EpisodeRecord, by_question


@dataclass(frozen=True)
class Prices:
    """What a system costs, in one currency: per million tokens read and written, per search, per second in which it plays.

    Episodes that are under way together share their seconds.
    """

    input_per_million: float = 0.0
    output_per_million: float = 0.0
    per_search: float = 0.0
    per_second: float = 0.0

    @property
    def known(self) -> bool:
        """Whether any price is set; without one a cost of 0 would be a lie."""
        return any((self.input_per_million, self.output_per_million, self.per_search, self.per_second))

    def cost(self, record: EpisodeRecord) -> float:
        """Of one episode."""
        tokens = record.prompt_tokens * self.input_per_million + record.sampled_tokens * self.output_per_million
        return tokens / 1e6 + record.searches * self.per_search + record.billed_s * self.per_second


@dataclass(frozen=True)
class MeasureSettings:
    """`success_threshold`: the nDCG@10 from which an episode counts as solved; `pass_k`: the k of pass@k and pass^k."""

    success_threshold: float = 0.9
    pass_k: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    resamples: int = 10_000
    seed: int = 0


def measure(
    records: Sequence[EpisodeRecord], settings: MeasureSettings, prices: Prices | None = None
) -> dict[str, Any]:
    """JSON types: a name to `{"mean", "ci95", "n"}`; in `failure_rates` the same of each reason for a failure.

    `latency_s` has `median` and `p95`, each with its interval, and `n` episodes; see `statistics.quantile_interval`. pass@k and
    pass^k are over the questions with at least k episodes and left out where there is none. Raises DataError as `summarise` does.
    """
    groups = list(by_question(records).values())
    result: dict[str, Any] = {}

    def add(name: str, values: list[list[float]], top: float = math.inf) -> None:
        kept = [group for group in values if group]
        if kept:
            found = bootstrap_mean_ci(kept, resamples=settings.resamples, seed=settings.seed, bounds=(0.0, top))
            result[name] = {"mean": found.mean, "ci95": found.interval, "n": found.n}

    for name, quality in _QUALITIES.items():
        add(name, [[quality(record) if record.finished else 0.0 for record in group] for group in groups], 1.0)
    solved = [[record.score >= settings.success_threshold for record in group] for group in groups]
    add("success_rate", [[float(flag) for flag in flags] for flags in solved], 1.0)
    for k in settings.pass_k:
        enough = [flags for flags in solved if len(flags) >= k]
        if enough and (k > 1 or max(map(len, enough)) > 1):
            add(f"pass_at_{k}", [[pass_at_k(len(flags), sum(flags), k)] for flags in enough], 1.0)
            add(f"pass_power_{k}", [[pass_power_k(len(flags), sum(flags), k)] for flags in enough], 1.0)
    ended = [[record for record in group if not record.outcome.is_infrastructure_failure] for group in groups]
    for name, (amount, top) in _AMOUNTS.items():
        add(name, [[amount(record) for record in group] for group in ended], top)
    if prices is not None and prices.known:
        add("cost", [[prices.cost(record) for record in group] for group in ended])
    latencies = [[record.latency_s for record in group] for group in ended if group]
    if latencies:
        result["latency_s"] = {"n": sum(map(len, latencies))}
        for name, quantile in (("median", 0.5), ("p95", 0.95)):
            value, interval = quantile_interval(latencies, quantile)
            result["latency_s"] |= {name: value, f"{name}_ci95": interval}
    result["failure_rates"] = {}
    for reason in sorted({record.outcome for record in records if record.outcome.is_policy_failure}):
        rate = rate_interval([[record.outcome is reason for record in group] for group in groups])
        result["failure_rates"][reason.value] = {"mean": rate.mean, "ci95": rate.interval, "n": rate.n}
    result["success_threshold"] = settings.success_threshold
    return result


_QUALITIES: dict[str, Callable[[EpisodeRecord], float]] = {
    "recall@10": lambda record: record.recall_10,
    "recall@100": lambda record: record.recall_100,
    "mrr": lambda record: record.reciprocal_rank,
}
# Name -> (value, largest possible mean).
_AMOUNTS: dict[str, tuple[Callable[[EpisodeRecord], float], float]] = {
    "gold_found": (lambda record: float(record.gold_found > 0), 1.0),
    "gold_found_share": (lambda record: record.gold_found / record.gold if record.gold else 0.0, 1.0),
    "gold_found_not_handed_in": (lambda record: float(record.gold_left > 0), 1.0),
    "turns": (lambda record: float(record.turns), math.inf),
    "searches": (lambda record: float(record.searches), math.inf),
    "idle_searches": (lambda record: float(record.idle_searches), math.inf),
    "malformed_calls": (lambda record: float(record.malformed_calls), math.inf),
    "injected": (lambda record: float(record.injected), math.inf),
    "prompt_tokens": (lambda record: float(record.prompt_tokens), math.inf),
    "sampled_tokens": (lambda record: float(record.sampled_tokens), math.inf),
    "waited_s": (lambda record: record.waited_s, math.inf),
}
