"""Whether the processes that a job asks for can be packed onto the nodes of a cluster: each runs on one node, and one that asks for
a share of a GPU runs on one GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SLACK = 1e-6
"""Shares such as a third do not sum to a whole exactly."""


@dataclass(frozen=True)
class Ask:
    """`number` processes of one kind; `cpus` and `gpus` are those of each."""

    kind: str
    number: int
    cpus: float
    gpus: float


class _Node:
    def __init__(self, resources: Mapping[str, float]) -> None:
        self.cpus = resources.get("CPU", 0.0)
        self.gpus = [1.0] * int(resources.get("GPU", 0.0))

    def take(self, ask: Ask) -> bool:
        """Makes room for one process; False where there is none."""
        share, count = min(ask.gpus, 1.0), math.ceil(ask.gpus)
        chosen = [place for place, free in enumerate(self.gpus) if free + SLACK >= share][:count]
        if ask.cpus > self.cpus + SLACK or len(chosen) < count:
            return False
        self.cpus -= ask.cpus
        for place in chosen:
            self.gpus[place] -= share
        return True


def unplaced(asks: Sequence[Ask], nodes: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """How many processes of each kind find no node, by kind; empty where all do.

    `nodes`: the resources of each, under Ray's names. Several ways of packing are tried, largest first and kind by kind in turn, each
    process on the first node with room or on the fullest; so one that fits is found nearly always, though not always.
    """
    largest_first = sorted(asks, key=lambda ask: (ask.gpus, ask.cpus), reverse=True)
    queue = [ask for ask in largest_first for _ in range(ask.number)]
    rounds = max((ask.number for ask in asks), default=0)
    in_turn = [ask for turn in range(rounds) for ask in largest_first if turn < ask.number]
    tries = [_packed(order, nodes, fullest) for order in (queue, in_turn) for fullest in (False, True)]
    return min(tries, key=lambda missing: sum(missing.values()))


def _packed(order: Sequence[Ask], nodes: Sequence[Mapping[str, float]], fullest: bool) -> dict[str, int]:
    places = [_Node(resources) for resources in nodes]
    missing: dict[str, int] = {}
    for ask in order:
        if fullest:
            places.sort(key=lambda place: (sum(place.gpus), place.cpus))
        if not any(place.take(ask) for place in places):
            missing[ask.kind] = missing.get(ask.kind, 0) + 1
    return missing
