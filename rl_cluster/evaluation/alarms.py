"""Signs that a run learns something else than it should, as pure functions over episodes and validations.

Each returns a share or a difference; `step_alarms` and `flat_metric_alarm` turn those over their limits into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.evaluation.records import idle_searches, searches_of

Groups = Mapping[str, Sequence[Trajectory]]


@dataclass(frozen=True)
class AlarmLimits:
    """What is still taken for usual; shares in [0, 1], `rise` in units of reward, `entropy` as a share of the run's first steps."""

    copied: float = 0.8
    idle: float = 0.5
    variety: float = 0.15
    identical: float = 0.5
    invalid: float = 0.2
    entropy: float = 0.1
    rise: float = 0.1


def copied_answers(groups: Groups) -> float | None:
    """Share of the rewarded rankings of at least two documents that are one search's hits, in its own order.

    Such a ranking was copied from the tool's text, and the reward is the retriever's. None without such a ranking.
    """
    rewarded = [t for group in groups.values() for t in group if (t.reward or 0.0) > 0 and len(t.ranking) > 1]
    if not rewarded:
        return None
    copied = sum(
        any(list(call.found_ids[: len(played.ranking)]) == played.ranking for call in searches_of(played))
        for played in rewarded
    )
    return copied / len(rewarded)


def idle_share(groups: Groups) -> float | None:
    """Share of searches, each episode's first left out, that showed no document which earlier ones had not shown."""
    idle = searches = 0
    for group in groups.values():
        for trajectory in group:
            searches += max(len(searches_of(trajectory)) - 1, 0)
            idle += idle_searches(trajectory)
    return idle / searches if searches else None


def query_variety(groups: Groups) -> float | None:
    """Mean over groups of how unlike the queries of its episodes are: 0 for the same words everywhere, 1 for none shared.

    One less Jaccard's similarity of the sets of words, over all pairs of episodes. None where no group has two that searched.
    """
    found = []
    for group in groups.values():
        words = [_query_words(trajectory) for trajectory in group]
        words = [each for each in words if each]
        distances = [1 - len(a & b) / len(a | b) for a, b in combinations(words, 2)]
        if distances:
            found.append(sum(distances) / len(distances))
    return sum(found) / len(found) if found else None


def identical_groups(groups: Groups) -> float | None:
    """Share of groups of at least two whose episodes say the same, word for word; nothing can be learned from those."""
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return None
    return sum(len({tuple(turn.text for turn in t.turns) for t in group}) == 1 for group in several) / len(several)


def invalid_calls(groups: Groups) -> float | None:
    """Share of tool calls that could not be carried out as written: malformed, or refused by the service. None without a call."""
    calls = [call for group in groups.values() for t in group for turn in t.turns for call in turn.tool_calls]
    return sum(call.error is not None for call in calls) / len(calls) if calls else None


def entropy_alarm(entropies: Sequence[float], limits: AlarmLimits | None = None) -> str | None:
    """A sentence when the newest entropy has collapsed against the mean of the first three, else None.

    entropies: of the policy, nats a token, by step, those without a trained token left out. Needs four.
    """
    limits = limits or AlarmLimits()
    if len(entropies) < 4:
        return None
    first = sum(entropies[:3]) / 3
    if entropies[-1] >= limits.entropy * first:
        return None
    return (
        f"the policy's entropy fell from {first:.3f} to {entropies[-1]:.3f} nats a token: it hardly explores any more"
    )


def step_metrics(groups: Groups) -> dict[str, float]:
    """The shares above under the names that they are tracked by; what cannot be said is left out."""
    found = {
        "alarms/copied_answers": copied_answers(groups),
        "alarms/idle_searches": idle_share(groups),
        "alarms/query_variety": query_variety(groups),
        "alarms/identical_groups": identical_groups(groups),
        "alarms/invalid_calls": invalid_calls(groups),
    }
    return {name: value for name, value in found.items() if value is not None}


def step_alarms(metrics: Mapping[str, float], limits: AlarmLimits | None = None) -> list[str]:
    """One sentence for each of `step_metrics` that is over its limit."""
    limits = limits or AlarmLimits()
    alarms = []
    if metrics.get("alarms/copied_answers", 0.0) > limits.copied:
        share = metrics["alarms/copied_answers"]
        alarms.append(f"{share:.0%} of the rewarded rankings are copied from one search as it stood")
    if metrics.get("alarms/idle_searches", 0.0) > limits.idle:
        alarms.append(f"{metrics['alarms/idle_searches']:.0%} of the later searches show nothing new")
    if metrics.get("alarms/query_variety", 1.0) < limits.variety:
        alarms.append(f"queries hardly differ within a group (variety {metrics['alarms/query_variety']:.2f})")
    if metrics.get("alarms/identical_groups", 0.0) > limits.identical:
        alarms.append(
            f"in {metrics['alarms/identical_groups']:.0%} of the groups all episodes are the same, word for word"
        )
    if metrics.get("alarms/invalid_calls", 0.0) > limits.invalid:
        alarms.append(f"{metrics['alarms/invalid_calls']:.0%} of the tool calls are malformed or refused")
    return alarms


def flat_metric_alarm(
    rewards: Sequence[tuple[float, float]],
    validations: Sequence[Mapping[str, float]],
    metric: str,
    limits: AlarmLimits | None = None,
) -> str | None:
    """A sentence when the training reward rose and the external metric did not, else None.

    rewards: (step, mean reward); validations: `step`, `mean`, `low`, `high`. The first and last third of the rewards since the
    first validation are compared; the metric is flat where its last mean is no higher than the upper bound of its first, and where
    it has so many questions that a rise like the reward's would have passed that bound. Needs three validations and six steps.
    """
    limits = limits or AlarmLimits()
    if len(validations) < 3:
        return None
    first, last = validations[0], validations[-1]
    values = [reward for step, reward in rewards if first["step"] <= step <= last["step"]]
    third = len(values) // 3
    if third < 2:
        return None
    rise = sum(values[-third:]) / third - sum(values[:third]) / third
    upper = first["mean"] if first["high"] is None else first["high"]
    could_tell = first["mean"] + rise > upper
    if rise <= limits.rise or not could_tell or last["mean"] > upper:
        return None
    return f"the reward rose by {rise:.2f} while {metric} went from {first['mean']:.3f} to {last['mean']:.3f}"


def _query_words(trajectory: Trajectory) -> frozenset[str]:
    queries = [str(call.arguments.get("query", "")) for turn in trajectory.turns for call in turn.tool_calls]
    return frozenset(word for query in queries for word in query.lower().split())
