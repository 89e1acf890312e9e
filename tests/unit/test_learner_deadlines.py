"""Ranks of the learner that do not come, or do not finish: the others say so at the deadline."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actors.learner import LearnerGroup
from rl_cluster.errors import DeadlineError
from rl_cluster.learning.rank import LearnerRank
from tests.helpers.tiny_learner import SETTINGS


def test_learner_group_ranks_that_do_not_finish_are_named_and_waited_for_no_longer() -> None:
    ended: list[str] = []

    async def never(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def gather() -> None:
        calls: list[Any] = [never("first"), asyncio.sleep(0), never("third")]
        with pytest.raises(DeadlineError, match=r"^Learner ranks \[0, 2\] did not finish 'setup' within 0 s\.$"):
            await LearnerGroup._gather(calls, 0.01, "setup")
        await asyncio.sleep(0)
        assert sorted(ended) == ["first", "third"]  # they are cancelled in no order

    asyncio.run(gather())


def test_learner_rank_whose_others_never_come_says_where_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meeting place answers, and rank 0 is not there. DeepSpeed comes after the meeting, and marks its process."""
    place = torch.distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10)
    )
    deepspeed = SimpleNamespace(ops=SimpleNamespace(__compatible_ops__={}))
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)  # type: ignore[arg-type]
    monkeypatch.setattr("rl_cluster.learning.rank.use_onednn_for_float32", lambda: None)
    for name in ("DS_ACCELERATOR", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # put back afterwards
    settings = replace(SETTINGS, num_threads=torch.get_num_threads(), rendezvous_timeout_s=0.1)
    rank = LearnerRank(settings, 1, 2, ("127.0.0.1", place.port))
    with pytest.raises(
        DeadlineError,
        match=rf"^Learner rank 1 of 2 could not meet the others at 127\.0\.0\.1:{place.port} within 0 s: ",
    ):
        rank.setup()
    assert not torch.distributed.is_initialized()
