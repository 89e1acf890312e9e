"""What the driver checks of a cluster before the job starts, what a dry run leaves, and how the end of the coordinator is noticed."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import grpc
import pytest
from ray.exceptions import ActorDiedError, AuthenticationError, GetTimeoutError, OutOfMemoryError, RpcError

from rl_cluster.config import Config
from rl_cluster.errors import ClusterError
from rl_cluster.train import _check_transport, _events, _require_listener, _require_token, run
from tests.helpers.chat_server import chat_server, completion
from tests.helpers.configuration import load_config


def test_check_transport_shared_memory_over_several_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": True}, {"Alive": False}, {"Alive": True}]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    with pytest.raises(ClusterError, match=r"shared_memory .* the cluster has 2 nodes; set weight_sync=object_store"):
        _check_transport(load_config([]))
    _check_transport(load_config(["weight_sync=object_store"]))
    nodes.pop()
    _check_transport(load_config([]))


@pytest.mark.parametrize(
    "error", [ActorDiedError(), OutOfMemoryError("The node is low on memory.")], ids=["died", "memory"]
)
def test_events_coordinator_that_is_gone_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def get(reference: object, timeout: float) -> None:
        raise error

    monkeypatch.setattr("ray.get", get)
    coordinator = SimpleNamespace(events=SimpleNamespace(remote=lambda seen: None))
    with pytest.raises(ClusterError, match=r"^The coordinator died: "):
        _events(coordinator, 0)
    error = GetTimeoutError()
    assert _events(coordinator, 0) == []


@pytest.fixture
def small_cluster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster of one node for the driver, whose inputs pass; the names of what was started on it."""
    started: list[str] = []
    monkeypatch.setattr("rl_cluster.preflight.check_inputs_apart", lambda config: None)
    monkeypatch.setattr("rl_cluster.train._connect", lambda config: None)
    monkeypatch.setattr("rl_cluster.train._check_search_port", lambda config: None)
    monkeypatch.setattr("rl_cluster.train._follow", lambda config, console: started.append(config.run_name))
    node = {"Alive": True, "Resources": {"CPU": 4.0, "object_store_memory": float(4 << 30)}}
    monkeypatch.setattr("ray.nodes", lambda: [node])
    monkeypatch.setattr("ray.available_resources", lambda: node["Resources"])
    return started


def test_run_dry_prints_settings_and_table_and_starts_nothing(
    small_cluster: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config([f"output_dir={tmp_path / 'run'}", "dry_run=true"])
    assert run(config) == 0
    printed = capsys.readouterr().out
    settings, end = json.JSONDecoder().raw_decode(printed)
    assert settings == config.model_dump(mode="json")
    assert f"{config.rollout.cpus_per_worker + 0.5:.2f}" in printed[end:]
    assert "missing" not in printed
    assert small_cluster == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dry", ["true", "false"])
def test_run_job_that_no_node_holds_is_refused_and_starts_nothing(
    small_cluster: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], dry: str
) -> None:
    assert run(load_config([f"output_dir={tmp_path / 'run'}", "rollout.cpus_per_worker=9", f"dry_run={dry}"])) == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert "missing" in printed
    assert "1 on no node" in printed
    assert "error: The cluster cannot hold the job (see the table): it lacks 9.5 CPU of " in printed
    assert "room for 1 of 1 x rollout worker of 9 CPU, 0 GPU; lower rollout.num_workers=1" in printed
    assert small_cluster == []
    assert list(tmp_path.iterdir()) == []


def test_run_dry_on_a_search_port_that_another_program_holds_is_refused(
    small_cluster: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: Config) -> None:
        raise ClusterError(f"search.port={config.search.port} is taken")

    monkeypatch.setattr("rl_cluster.train._check_search_port", refuse)
    assert run(load_config([f"output_dir={tmp_path / 'run'}", "dry_run=true"])) == 2
    assert "error: search.port=8377 is taken" in capsys.readouterr().out


def test_run_on_a_cluster_that_others_hold_warns_and_starts(
    small_cluster: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 0.5, "object_store_memory": float(4 << 30)})
    run(load_config([f"output_dir={tmp_path / 'run'}"]))
    printed = " ".join(capsys.readouterr().out.split())
    assert "warning: the job asks for 1 CPU, of which 0.5 is free: other work holds the cluster" in printed
    assert small_cluster == ["search"]


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (AuthenticationError("InvalidAuthToken"), "'127.0.0.1:6379' asks for a token, .*; set RAY_AUTH_MODE=token"),
        (RpcError("Timed out"), r"No Ray cluster answers at address '127\.0\.0\.1:6379' \(Timed out"),
    ],
)
def test_connect_to_what_refuses_says_why(monkeypatch: pytest.MonkeyPatch, refusal: Exception, said: str) -> None:
    def client(address: str) -> None:
        raise refusal

    monkeypatch.setattr("ray._raylet.GcsClient", client)
    with pytest.raises(ClusterError, match=said):
        _require_token("127.0.0.1:6379")


def test_listener_that_speaks_as_ray_does_is_taken_and_any_other_is_refused_at_once() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert _require_listener(f"127.0.0.1:{port}", 30.0) == f"127.0.0.1:{port}"
    finally:
        server.stop(None)
    with (
        chat_server(lambda body: completion("x")) as web,
        pytest.raises(ClusterError, match="is no Ray cluster; start"),
    ):
        _require_listener(urlsplit(web.url).netloc, 30.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ClusterError, match="timed out"):
        _require_listener(f"127.0.0.1:{silent.getsockname()[1]}", 0.2)


def test_listener_is_looked_for_where_ray_notes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert _require_listener("auto", 1.0) is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"No Ray cluster answers at address '127\.0\.0\.1:1'"):
        _require_listener("auto", 1.0)
