"""What a job asks of a cluster, packed onto its nodes, and the table that says so."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from rl_cluster.preflight import Fit, fit
from rl_cluster.scheduling.placement import Ask, unplaced
from tests.helpers.configuration import load_config

GPU_RUN = ["cluster=gpu", "rollout=gpu", "learner=gpu", "weight_sync=nccl"]


@pytest.mark.parametrize(
    ("asks", "nodes", "missing"),
    [
        ([Ask("worker", 2, 3, 0)], [{"CPU": 4}, {"CPU": 4}], {}),
        ([Ask("worker", 2, 3, 0)], [{"CPU": 5}, {"CPU": 1}], {"worker": 1}),
        ([Ask("worker", 1, 0, 4)], [{"GPU": 2}, {"GPU": 2}], {"worker": 1}),
        ([Ask("rank", 1, 0, 1), Ask("worker", 1, 0, 4)], [{"GPU": 4}, {"GPU": 1}], {}),
        ([Ask("worker", 3, 0, 0.6)], [{"GPU": 2}], {"worker": 1}),
        ([Ask("rank", 1, 0, 0.5), Ask("worker", 1, 0, 0.5)], [{"GPU": 1}], {}),
        ([Ask("worker", 3, 1 / 3, 1 / 3)], [{"CPU": 1, "GPU": 1}], {}),
        ([Ask("worker", 1, 4, 1)], [{"CPU": 8}, {"CPU": 2, "GPU": 1}], {"worker": 1}),
        ([Ask("worker", 2, 4, 0), Ask("rank", 4, 3, 0)], [{"CPU": 10}, {"CPU": 10}], {}),
        ([Ask("replica", 5, 0, 0)], [{}], {}),
        ([Ask("replica", 2, 0, 0)], [], {"replica": 2}),
    ],
)
def test_unplaced_names_what_finds_no_node(
    asks: list[Ask], nodes: list[dict[str, float]], missing: dict[str, int]
) -> None:
    assert unplaced(asks, nodes) == missing


def table_of(
    monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, float]], free: dict[str, float], *overrides: str
) -> tuple[list[list[str]], Fit]:
    """The words of each line of the table over a simulated cluster, one node of which is dead; and what it says besides."""
    alive: list[dict[str, Any]] = [{"Alive": True, "Resources": resources} for resources in nodes]
    monkeypatch.setattr("ray.nodes", lambda: [*alive, {"Alive": False, "Resources": {}}])
    monkeypatch.setattr("ray.available_resources", lambda: free)
    found = fit(load_config(overrides))
    text = io.StringIO()
    Console(file=text, width=110).print(found.table)
    return [line.strip("│┃ ").replace("│", " ").split() for line in text.getvalue().splitlines()], found


def test_resource_table_shows_what_is_free_beside_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"CPU": 8.0, "object_store_memory": 2.0 * (1 << 30)}
    lines, found = table_of(monkeypatch, [node], {"CPU": 0.5}, "search.cpus_per_replica=0.25")
    assert not found.lacks
    assert found.busy == ["1.5 CPU, of which 0.5 is free"]
    assert ["CPU", "1.50", "8.00", "0.50"] in lines
    assert ["object", "store", "GiB", "1.00", "2.00", "0.00"] in lines


def test_resource_table_worker_that_no_node_holds_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster's sum is enough, and no node is."""
    nodes = [{"CPU": 16.0, "GPU": 2.0}] * 2
    asks = ["rollout.gpus_per_worker=3", "rollout.tensor_parallel_size=2"]
    lines, found = table_of(monkeypatch, nodes, {}, *GPU_RUN, *asks)
    assert found.lacks == ["room for 1 of 1 x rollout worker of 4 CPU, 3 GPU"]
    assert ["GPU", "4.00", "4.00", "0.00"] in lines
    assert ["rollout", "worker", "of", "4", "CPU,", "3", "GPU", "1", "1", "on", "no", "node"] in lines
    assert not table_of(monkeypatch, [{"CPU": 16.0, "GPU": 4.0}], {}, *GPU_RUN, *asks)[1].lacks


def test_resource_table_more_than_there_is_says_how_much_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, found = table_of(monkeypatch, [{"CPU": 4.0}], {"CPU": 4.0}, "rollout.cpus_per_worker=9")
    assert found.lacks[:2] == ["9.5 CPU of 4", "1 object store GiB of 0"]
    assert [mend.partition("=")[0] for mend in found.mends] == [
        "lower cluster.object_store_gib",
        "lower rollout.num_workers",
    ]
    assert ["CPU", "9.50", "4.00", "4.00", "5.50", "missing"] in lines
    assert ["object", "store", "GiB", "1.00", "0.00", "0.00", "1.00", "missing"] in lines


def test_resource_table_object_store_alone_is_mended_by_its_own_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"CPU": 8.0, "object_store_memory": 2.0 * (1 << 30)}
    _, found = table_of(monkeypatch, [node], {"CPU": 8.0}, "cluster.object_store_gib=3")
    assert found.lacks == ["3 object store GiB of 2"]
    assert found.mends == [
        "lower cluster.object_store_gib=3, or start Ray with --object-store-memory=3221225472 (bytes)"
    ]
