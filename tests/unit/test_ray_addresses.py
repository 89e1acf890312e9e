"""An address of Ray that is none is answered in one sentence."""

from __future__ import annotations

import pytest

from rl_cluster.errors import ClusterError
from rl_cluster.launch import _answers
from rl_cluster.train import _require_listener


@pytest.mark.parametrize("address", ["", "myhost"])
def test_answers_address_without_a_scheme_is_no_cluster(address: str) -> None:
    assert not _answers(address)


def test_require_listener_host_that_cannot_be_one_is_no_cluster() -> None:
    with pytest.raises(ClusterError, match=r"No Ray cluster answers at address '\.:6379'"):
        _require_listener(".:6379", 1.0)
