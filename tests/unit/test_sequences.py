"""Sequence extension and batching: properties over random turn scripts, a golden row, and the merged gradient."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import LearnerError, Outcome
from rl_cluster.sequences.batching import (
    MIN_SHARED_PREFIX,
    MicroBatch,
    longest_common_prefix,
    make_micro_batches,
    micro_batches_of_ranks,
    partition_over_ranks,
)
from rl_cluster.sequences.extension import rows_from_trajectory, set_advantages
from rl_cluster.sequences.row import MIXED_VERSIONS, TrainingRow

GOLDEN_ROW = Path(__file__).parent / "golden" / "extension_row.json"
ARRAYS = ("token_ids", "loss_mask", "behaviour_logprobs", "weight_versions", "advantages", "turn_index")


def trajectory_of(turns: list[Turn], trajectory_id: str = "t") -> Trajectory:
    return Trajectory(trajectory_id, "task", "group", turns, Outcome.FINISHED)


@st.composite
def turn_scripts(draw: st.DrawFn) -> Trajectory:
    """Turns extend, drop or rewrite the history; the k-th sampled token has version k and log-prob -k/64."""
    tokens = st.lists(st.integers(0, 3), max_size=4)
    turns: list[Turn] = []
    history: list[int] = []
    sampled_so_far = 0
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["extend", "extend", "extend", "truncate", "rewrite", "restart"]))
        if kind == "truncate":
            history = history[: draw(st.integers(0, len(history)))]
        elif kind == "rewrite" and history:
            place = draw(st.integers(0, len(history) - 1))
            history = [*history[:place], 9, *history[place + 1 :]]
        elif kind == "restart":
            history = []
        prompt = history + draw(tokens)
        prompt = prompt or [7]
        sampled = draw(tokens)
        numbers = range(sampled_so_far, sampled_so_far + len(sampled))
        turns.append(Turn(list(prompt), sampled, [-k / 64 for k in numbers], list(numbers)))
        sampled_so_far += len(sampled)
        history = prompt + sampled
    return trajectory_of(turns)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(trajectory=turn_scripts())
def test_rows_random_scripts_keep_every_sampled_token_once_in_its_context(trajectory: Trajectory) -> None:
    """Rows hold what was sampled, token by token: ids, log-probs and versions; nothing observed is trained (invariants 1 to 3)."""
    rows, broken = rows_from_trajectory(trajectory)
    contexts = {
        version: ([*turn.prompt_ids, *turn.sampled_ids[:place]], turn.sampled_ids[place], index)
        for index, turn in enumerate(trajectory.turns)
        for place, version in enumerate(turn.weight_versions)
    }
    seen: list[int] = []
    for row in rows:
        assert {len(getattr(row, name)) for name in ARRAYS} == {len(row)}
        assert row.num_trained > 0
        assert not row.behaviour_logprobs[~row.loss_mask].any()
        assert (row.weight_versions[~row.loss_mask] == -1).all()
        for position in np.flatnonzero(row.loss_mask):
            version = int(row.weight_versions[position])
            context, token, turn_index = contexts[version]
            assert row.token_ids[: position + 1].tolist() == [*context, token]
            assert row.behaviour_logprobs[position] == -version / 64
            assert row.turn_index[position] == turn_index
            seen.append(version)
    assert seen == list(range(trajectory.num_sampled))
    assert broken == max(len(rows) - 1, 0)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(trajectory=turn_scripts())
def test_rows_random_scripts_break_only_where_the_prefix_does(trajectory: Trajectory) -> None:
    expected = 0
    so_far: list[int] | None = None
    for turn in trajectory.turns:
        if turn.sampled_ids:
            expected += so_far is not None and list(turn.prompt_ids[: len(so_far)]) != so_far
            so_far = [*turn.prompt_ids, *turn.sampled_ids]
    assert rows_from_trajectory(trajectory).num_broken_prefixes == expected


def test_rows_golden_trajectory_matches_file() -> None:
    """Any change of a row fails here."""
    golden = json.loads(GOLDEN_ROW.read_text())
    rows, broken = rows_from_trajectory(trajectory_of([Turn(**turn) for turn in golden["turns"]]))
    assert [{name: getattr(row, name).astype(float).tolist() for name in ARRAYS} for row in rows] == golden["rows"]
    assert broken == golden["num_broken_prefixes"]
    dtypes = ["int32", "bool", "float32", "int32", "float32", "int16"]
    assert [str(getattr(rows[0], name).dtype) for name in ARRAYS] == dtypes


def test_rows_no_sampled_token_gives_no_row() -> None:
    assert rows_from_trajectory(trajectory_of([Turn([1, 2], [], [], [])])) == ([], 0)


@pytest.mark.parametrize(
    ("logprobs", "versions"), [([-1.0], [0, 0]), ([-1.0, -1.0], [0]), ([-1.0] * 3, [0, 0]), ([], [])]
)
def test_rows_unequal_lengths_raise_naming_trajectory(logprobs: list[float], versions: list[int]) -> None:
    with pytest.raises(LearnerError, match="Turn 0 of trajectory 't-9'"):
        rows_from_trajectory(trajectory_of([Turn([1], [2, 3], logprobs, versions)], "t-9"))


def test_rows_empty_prompt_raises_naming_trajectory() -> None:
    with pytest.raises(LearnerError, match="'t-9' has an empty prompt"):
        rows_from_trajectory(trajectory_of([Turn([], [2], [-1.0], [0])], "t-9"))


def test_set_advantages_three_turns_reach_every_sampled_token() -> None:
    """Every sampled token of every row carries its advantage, in the order of sampling."""
    turns = [Turn([1], [2], [-1.0], [0]), Turn([1, 2, 3], [4], [-1.0], [0]), Turn([9], [5, 6], [-1.0, -1.0], [0, 0])]
    rows = rows_from_trajectory(trajectory_of(turns)).rows
    set_advantages(rows, {"t": np.array([1.5, 2.0, 2.5, 3.0])})
    assert [row.advantages.tolist() for row in rows] == [[0, 1.5, 0, 2.0], [0, 2.5, 3.0]]
    assert rows[0].advantages.dtype == np.float32
    with pytest.raises(LearnerError, match="'t' has rows but no advantage"):
        set_advantages(rows, {"other": np.ones(4)})
    with pytest.raises(LearnerError, match="'t' has 4 sampled tokens in its rows but 3 advantages"):
        set_advantages(rows, {"t": np.ones(3)})


def linear_policy_loss(rows: list[TrainingRow]) -> tuple[float, torch.Tensor]:
    """importance_sampling with token_sum on the formula sheet's policy: logits = mean one-hot of the past times W."""
    weights = torch.tensor(
        [[0.2, -0.1, 0.4], [-0.3, 0.5, 0.1], [0.3, 0.2, -0.6]], dtype=torch.float64, requires_grad=True
    )
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        one_hot = torch.nn.functional.one_hot(torch.tensor(row.token_ids.astype(np.int64)), 3).double()
        for position in np.flatnonzero(row.loss_mask):
            logprob = torch.log_softmax(one_hot[:position].mean(0) @ weights, -1)[int(row.token_ids[position])]
            ratio = torch.exp(logprob - float(row.behaviour_logprobs[position]))
            total = total - ratio * float(row.advantages[position])
    total.backward()
    assert weights.grad is not None
    return total.item(), weights.grad


def test_extension_merged_row_equals_sum_of_turn_rows_and_golden_values() -> None:
    turns = [Turn([0, 1], [2], [-1.0], [0]), Turn([0, 1, 2, 1], [0, 2], [-1.2, -0.9], [0, 0])]
    merged = rows_from_trajectory(trajectory_of(turns)).rows
    apart = [row for turn in turns for row in rows_from_trajectory(trajectory_of([turn])).rows]
    set_advantages(merged, {"t": np.full(3, 0.5)})
    set_advantages(apart, {"t": np.full(3, 0.5)})
    assert len(merged) == 1
    assert len(apart) == 2
    loss, gradient = linear_policy_loss(merged)
    first, second = (linear_policy_loss([row]) for row in apart)
    assert (first[0], second[0], loss) == pytest.approx((-0.504873, -0.892527, -1.397400), abs=2e-6)
    assert float(gradient.norm()) == pytest.approx(0.450999, abs=2e-6)
    assert gradient[0].tolist() == pytest.approx([0.032115, 0.197251, -0.229366], abs=2e-6)
    assert loss == pytest.approx(first[0] + second[0], rel=1e-10)
    torch.testing.assert_close(gradient, first[1] + second[1], rtol=1e-10, atol=1e-14)


def row_of(ids: list[int], first_trained: int, group: str = "g", trajectory: str = "t") -> TrainingRow:
    sampled = ids[first_trained:]
    turn = Turn(ids[:first_trained], sampled, [-1.0] * len(sampled), [0] * len(sampled))
    return rows_from_trajectory(Trajectory(trajectory, "task", group, [turn], Outcome.FINISHED)).rows[0]


@st.composite
def row_sets(draw: st.DrawFn) -> list[TrainingRow]:
    rows = []
    for group in range(draw(st.integers(0, 4))):
        prompt = [1] * draw(st.integers(0, 40)) + [2 + group] * draw(st.integers(1, 40))
        for member in range(draw(st.integers(1, 4))):
            kept = prompt[draw(st.integers(0, 1)) * draw(st.integers(0, len(prompt) - 1)) :]
            suffix = draw(st.lists(st.integers(6, 8), min_size=1, max_size=60))
            rows.append(row_of(kept + suffix, len(kept), str(group), f"{group}-{member}"))
    return draw(st.permutations(rows))


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(rows=row_sets(), max_tokens=st.integers(1, 400), share=st.booleans(), launch=st.sampled_from([0, 64, 10_000]))
def test_micro_batches_random_rows_hold_each_row_once_within_budget(
    rows: list[TrainingRow], max_tokens: int, share: bool, launch: int
) -> None:
    batches = make_micro_batches(rows, max_tokens, share, launch)
    assert sorted(id(row) for batch in batches for row in batch.rows) == sorted(id(row) for row in rows)
    for batch in batches:
        assert len(batch.rows) == 1 or batch.cost <= max_tokens
        assert len(batch.rows) == 1 or len(batch.rows) * batch.suffix_len <= max_tokens
        assert batch.cost == batch.prefix_len + sum(batch.suffix_len for _ in batch.rows)
        assert batch.prefix_len == 0 or (share and batch.prefix_len >= MIN_SHARED_PREFIX and len(batch.rows) > 1)
        assert batch.prefix_len <= longest_common_prefix([row.token_ids for row in batch.rows])
        assert all(len(row) > batch.prefix_len for row in batch.rows)


@settings(max_examples=200, deadline=None)
@given(rows=row_sets(), data=st.data(), share=st.booleans())
def test_micro_batches_order_of_rows_does_not_matter(rows: list[TrainingRow], data: st.DataObject, share: bool) -> None:
    def names(batches: list[MicroBatch]) -> list[list[str]]:
        return [[row.trajectory_id for row in batch.rows] for batch in batches]

    shuffled = data.draw(st.permutations(rows))
    assert names(make_micro_batches(shuffled, 200, share)) == names(make_micro_batches(rows, 200, share))


def test_micro_batches_groups_share_their_own_prompt() -> None:
    prompts = {"a": [1] * 20 + [2] * 300, "b": [1] * 20 + [3] * 300}
    rows = [row_of(prompts[g] + [5] * (4 + i), 320, g, f"{g}{i}") for i in range(4) for g in "ab"]
    batches = make_micro_batches(rows, max_tokens=4096, share_prefix=True)
    assert [({row.group_id for row in batch.rows}, batch.prefix_len) for batch in batches] == [
        ({"a"}, 323),  # what the rows sampled alike too, save the last id of the shortest
        ({"b"}, 323),
    ]
    assert sum(batch.cost for batch in batches) == 2 * (323 + 4 * 4)
    plain = make_micro_batches(rows, max_tokens=4096, share_prefix=False)
    assert [batch.prefix_len for batch in plain] == [0]


def test_micro_batches_row_over_budget_stands_alone() -> None:
    rows = [row_of([1] * 50, 10, trajectory="long"), row_of([1] * 12, 10, trajectory="short")]
    assert [len(batch.rows) for batch in make_micro_batches(rows, 30, share_prefix=True)] == [1, 1]


def test_micro_batches_without_room_raise() -> None:
    with pytest.raises(LearnerError, match="max_tokens=0"):
        make_micro_batches([], 0, share_prefix=False)


def test_longest_common_prefix_edges_return_shortest_match() -> None:
    arrays = [np.array([1, 2, 3]), np.array([1, 2]), np.array([1, 2, 4])]
    assert longest_common_prefix([]) == 0
    assert longest_common_prefix(arrays[:1]) == 3
    assert longest_common_prefix(arrays) == 2
    assert longest_common_prefix([*arrays, np.array([5])]) == 0


@settings(max_examples=300, deadline=None)
@given(lengths=st.lists(st.integers(2, 90), max_size=20), world_size=st.integers(1, 5))
def test_partition_random_rows_gives_equal_slots_and_balance(lengths: list[int], world_size: int) -> None:
    """Ranks with different numbers of rows make the same number of calls."""
    rows = [row_of([1] * length, 1) for length in lengths]
    shares = partition_over_ranks(rows, world_size)
    assert len(shares) == world_size
    assert len({len(share) for share in shares}) == 1
    assert sorted(id(row) for share in shares for row in share if row is not None) == sorted(id(row) for row in rows)
    loads = [sum(len(row) for row in share if row is not None) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert all(share.index(None) == len([r for r in share if r is not None]) for share in shares if None in share)


def test_partition_micro_batches_is_balanced_by_cost() -> None:
    batches = make_micro_batches([row_of([1] * n, 1, trajectory=str(n)) for n in (60, 30, 30)], 60, False, 0)
    shares = partition_over_ranks(batches, 2)
    assert [[None if batch is None else batch.cost for batch in share] for share in shares] == [[60], [60]]
    assert partition_over_ranks(batches, 3)[2] == [None]


@pytest.mark.parametrize(
    ("count", "length", "world_size"), [(16, 2048, 2), (40, 1000, 2), (16, 1000, 4), (64, 2000, 8), (3, 100, 2)]
)
def test_micro_batches_of_ranks_leave_no_rank_idle(count: int, length: int, world_size: int) -> None:
    """The budget of a GPU would hold all rows in fewer micro-batches than there are ranks."""
    rows = [row_of([1] * length, 1, trajectory=f"{n:02}") for n in range(count)]
    shares = micro_batches_of_ranks(rows, 32_768, False, world_size)
    held = [[row for batch in share if batch for row in batch.rows] for share in shares]
    assert sorted(row.trajectory_id for mine in held for row in mine) == [f"{n:02}" for n in range(count)]
    assert max(map(len, held)) == -(-count // world_size)
    assert len({len(share) for share in shares}) == 1
    assert all(batch is None or batch.cost <= 32_768 for share in shares for batch in share)


def test_micro_batches_of_one_rank_or_no_row_are_packed_to_the_budget() -> None:
    rows = [row_of([1] * 100, 1, trajectory=str(n)) for n in range(4)]
    ((batch,),) = micro_batches_of_ranks(rows, 32_768, False, 1)
    assert batch is not None
    assert len(batch.rows) == 4
    assert micro_batches_of_ranks([], 32_768, True, 3) == [[], [], []]


def test_rows_tokens_sampled_over_older_keys_belong_to_no_version() -> None:
    turn = Turn([1, 2], [3, 4, 5], [-0.1, -0.2, -0.3], [6, 7, 7], mixed_cache_tokens=2)
    later = Turn([1, 2, 3, 4, 5, 8], [9], [-0.4], [7])
    (row,), _ = rows_from_trajectory(Trajectory("t", "t", "g", [turn, later], Outcome.FINISHED))
    assert row.weight_versions.tolist() == [-1, -1, 6, MIXED_VERSIONS, MIXED_VERSIONS, -1, 7]
