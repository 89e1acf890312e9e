"""Which episodes of a large group are trained: those whose rewards say most, since playing is cheap beside training."""

from __future__ import annotations

from collections.abc import Sequence


def most_varied(rewards: Sequence[float], count: int) -> list[int]:
    """The places, ascending, of the `count` rewards whose variance is largest (PODS, 2504.13818).

    They are always the lowest and the highest of all in some proportion.
    """
    count = min(count, len(rewards))
    order = sorted(range(len(rewards)), key=lambda place: rewards[place])
    best = order[:count]
    largest = 0.0
    for lowest in range(count, -1, -1):
        chosen = order[:lowest] + order[len(order) - (count - lowest) :]
        values = [rewards[place] for place in chosen]
        mean = sum(values) / count
        variance = sum((value - mean) ** 2 for value in values) / count
        if variance > largest * (1 + 1e-12):  # two ways to the same rewards may differ in their last digits
            best, largest = chosen, variance
    return sorted(best)
