"""Staleness: the hard bound on age, and admission that keeps to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.errors import ConfigError
from rl_cluster.scheduling.staleness import StalenessPolicy


def test_age_counts_completed_steps_since_oldest_version() -> None:
    policy = StalenessPolicy(max_steps_off_policy=2, groups_per_step=4)
    assert [policy.age(7, version) for version in (7, 5, 4)] == [0, 2, 3]
    assert [policy.is_stale(7, version) for version in (7, 5, 4)] == [False, False, True]


def test_age_version_from_undone_steps_raises() -> None:
    with pytest.raises(ValueError, match="version 9 is not among the versions 0 to 7"):
        StalenessPolicy(2, 4).age(7, 9)


def test_admissible_synchronous_starts_one_batch_and_waits_for_the_sync() -> None:
    policy = StalenessPolicy(max_steps_off_policy=0, groups_per_step=8)
    assert policy.admissible(0, 0, synced_version=0) == 8
    assert policy.admissible(0, 5, synced_version=0) == 3
    assert policy.admissible(0, 8, synced_version=0) == 0
    assert policy.admissible(1, 0, synced_version=0) == 0
    assert policy.admissible(1, 0, synced_version=1) == 8


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_admissible_resume_at_step_100_keeps_in_flight_plus_accepted_bounded(staleness: int) -> None:
    """After a resume in flight + accepted <= (S + 1) * B, though the step counter starts high."""
    policy = StalenessPolicy(staleness, groups_per_step=16)
    in_flight, accepted = 0, 0
    for _ in range(5):
        in_flight += policy.admissible(100, in_flight + accepted)
        in_flight, accepted = in_flight - min(in_flight, 5), accepted + min(in_flight, 5)
        assert in_flight + accepted == (staleness + 1) * 16


def test_admissible_over_the_bound_is_zero() -> None:
    assert StalenessPolicy(1, 4).admissible(3, 50) == 0


@settings(max_examples=400, deadline=None)
@given(
    staleness=st.integers(0, 3),
    size=st.integers(1, 4),
    events=st.lists(st.sampled_from(["start", "start_one", "begin", "end", "sync", "drop"]), max_size=120),
)
def test_admissible_fifo_training_never_exceeds_the_bound(staleness: int, size: int, events: list[str]) -> None:
    """Invariant 4: whatever the interleaving of starts, steps, drops and late syncs, no trained group is stale."""
    policy = StalenessPolicy(staleness, size)
    versions: list[int] = []
    completed = synced = 0
    training = False
    for event in events:
        if event.startswith("start"):
            allowed = policy.admissible(completed, len(versions), synced)
            versions += [synced] * (min(allowed, 1) if event == "start_one" else allowed)
        elif event == "begin" and not training and len(versions) >= size:
            training = True
            assert not any(policy.is_stale(completed, version) for version in versions[:size])
        elif event == "end" and training:
            versions, completed, training = versions[size:], completed + 1, False
        elif event == "sync":
            synced = completed
        elif event == "drop" and len(versions) > size:
            versions.pop()
        assert len(versions) <= policy.max_open_groups


@pytest.mark.parametrize("bad", [(-1, 1), (0, 0)])
def test_policy_impossible_bounds_raise(bad: tuple[int, int]) -> None:
    with pytest.raises(ConfigError):
        StalenessPolicy(*bad)
