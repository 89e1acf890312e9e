"""What the driver checks of a cluster before the job starts."""

from __future__ import annotations

import pytest

from rl_cluster.composition import load_config
from rl_cluster.errors import ClusterError
from rl_cluster.train import _check_transport


def test_check_transport_shared_memory_over_several_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True}, {"Alive": False}, {"Alive": True}]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    with pytest.raises(ClusterError, match=r"shared_memory .* the cluster has 2 nodes; set weight_sync=object_store"):
        _check_transport(load_config([]))
    _check_transport(load_config(["weight_sync=object_store"]))
    nodes.pop()
    _check_transport(load_config([]))
