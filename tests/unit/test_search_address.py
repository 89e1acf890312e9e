"""Where the search service listens: what cannot be listened on is refused before anything starts."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from actors import search_service
from actors.search_service import check_address, check_port
from rl_cluster.errors import ClusterError
from rl_cluster.service.values import http_address


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("127.0.0.1", socket.AF_INET),
        pytest.param(
            "::1", socket.AF_INET6, marks=pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
        ),
    ],
)
def test_check_port_free_one_passes_and_one_in_use_is_refused(host: str, family: socket.AddressFamily) -> None:
    with socket.socket(family) as owner:
        owner.bind((host, 0))
        port = owner.getsockname()[1]
        owner.listen()
        with pytest.raises(ClusterError, match=f"search.port={port} is in use on {host}"):
            check_port(port, host)
    check_port(port, host)


def test_check_port_host_of_another_machine_is_refused_by_its_setting() -> None:
    with pytest.raises(ClusterError, match=r"search\.host=192\.0\.2\.1: it is no address that this machine"):
        check_port(8377, "192.0.2.1")


def test_check_address_where_ray_serve_listens_elsewhere_names_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Serve keeps the options that it was first started with, whatever a later start asks for."""
    options = SimpleNamespace(host="0.0.0.0", port=8000)
    controller = SimpleNamespace(get_http_config=SimpleNamespace(remote=lambda: options))
    monkeypatch.setattr(search_service.ray, "get_actor", lambda name, namespace: controller)
    monkeypatch.setattr(search_service.ray, "get", lambda found, timeout: found)
    check_address("0.0.0.0", 8000)
    for host, port in (("0.0.0.0", 8377), ("127.0.0.1", 8000)):
        with pytest.raises(ClusterError, match=r"listens at host 0\.0\.0\.0 and port 8000 already") as caught:
            check_address(host, port)
        assert str(caught.value).startswith(f"search.host={host} and search.port={port}: ")


def test_http_address_ipv6_stands_in_brackets() -> None:
    assert http_address("::1", 8377) == "http://[::1]:8377"
    assert http_address("localhost", 8377) == "http://localhost:8377"
