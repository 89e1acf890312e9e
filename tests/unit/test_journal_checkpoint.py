"""The journal of finished groups and the checkpoint folders, each after a crash at the worst moment."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from rl_cluster.episodes.journal import GroupJournal
from rl_cluster.episodes.trajectory import ToolCall, Trajectory, Turn, TurnTimes
from rl_cluster.errors import CheckpointError, Outcome
from rl_cluster.learning.checkpoint import (
    RunState,
    check_learner_files,
    check_same_data,
    checkpoint_folder,
    checkpoint_steps,
    commit_checkpoint,
    last_progress,
    note_progress,
    partial_folder,
    read_state,
)


def trajectory(name: str, logprobs: list[float] | None = None) -> Trajectory:
    logprobs = [-0.5, -1.25] if logprobs is None else logprobs
    turn = Turn(
        prompt_ids=[1, 2, 3],
        sampled_ids=list(range(len(logprobs))),
        logprobs=logprobs,
        weight_versions=[4] * len(logprobs),
        text="bm25_search: \u00fc\u241e\x00",
        tool_calls=[
            ToolCall("bm25_search", {"query": "\u00fc", "k": 3}, found_ids=("d1",)),
            ToolCall("", {}, "the call is not valid"),
        ],
        observations=["d1 | title | text"],
        times=TurnTimes(0.1, 0.2, 0.3, 0.4),
        mixed_cache_tokens=1,
    )
    return Trajectory(name, "task", "group", [turn], Outcome.FINISHED, 0.5, {"reward": 0.5, "ndcg@10": 0.5}, ["d1"], 1)


@pytest.fixture
def journal(tmp_path: Path) -> GroupJournal:
    return GroupJournal(tmp_path / "run" / "journal.bin")


def test_journal_missing_file_reads_as_empty(journal: GroupJournal) -> None:
    assert list(journal.read()) == []


def test_journal_groups_come_back_equal_and_in_order(journal: GroupJournal) -> None:
    groups = {"g2": [trajectory("a"), trajectory("b")], "g1": [trajectory("c")], "g3": []}
    for group_id, group in groups.items():
        journal.append(group_id, group)
    assert list(GroupJournal(journal.path).read()) == list(groups.items())


def test_journal_outcomes_and_missing_reward_come_back(journal: GroupJournal) -> None:
    group = [Trajectory(outcome.value, "task", "group", [], outcome) for outcome in Outcome]
    journal.append("g", group)
    assert list(journal.read()) == [("g", group)]


def test_journal_torn_last_frame_loses_only_itself_at_every_length(journal: GroupJournal) -> None:
    journal.append("g1", [trajectory("a")])
    whole = journal.path.read_bytes()
    journal.append("g2", [trajectory("b")])
    both = journal.path.read_bytes()
    for size in {len(whole), len(whole) + 1, len(whole) + 11, len(whole) + 12, len(whole) + 13, len(both) - 1}:
        journal.path.write_bytes(both[:size])
        assert [group_id for group_id, _ in journal.read()] == ["g1"]


def test_journal_frame_with_a_flipped_byte_ends_the_reading(journal: GroupJournal) -> None:
    journal.append("g1", [trajectory("a")])
    journal.append("g2", [trajectory("b")])
    data = bytearray(journal.path.read_bytes())
    data[-5] ^= 1
    journal.path.write_bytes(data)
    assert [group_id for group_id, _ in journal.read()] == ["g1"]


def test_journal_rewritten_after_a_torn_frame_takes_new_groups(journal: GroupJournal) -> None:
    journal.append("g1", [trajectory("a")])
    with open(journal.path, "ab") as file:
        file.write(b"\x07torn")
    journal.rewrite(dict(journal.read()))
    journal.append("g2", [trajectory("b")])
    assert [group_id for group_id, _ in journal.read()] == ["g1", "g2"]


def test_journal_float32_logprobs_come_back_to_the_bit(journal: GroupJournal) -> None:
    random = np.random.default_rng(0)
    values = np.concatenate([-random.exponential(3, 500), -random.exponential(1e-6, 500), [0.0, -0.0, -1e-45, -3e38]])
    logprobs = values.astype(np.float32)
    journal.append("g", [trajectory("a", [float(value) for value in logprobs])])
    ((_, (back,)),) = journal.read()
    assert np.array(back.turns[0].logprobs, np.float32).tobytes() == logprobs.tobytes()


def test_journal_logprobs_that_are_not_finite_come_back(journal: GroupJournal) -> None:
    """NaN stands for a log-prob that the engine did not report; the group must survive a restart like any other."""
    journal.append("g", [trajectory("a", [math.nan, -math.inf, -1.0])])
    ((_, (back,)),) = journal.read()
    missing, impossible, usual = back.turns[0].logprobs
    assert math.isnan(missing)
    assert (impossible, usual) == (-math.inf, -1.0)


def test_journal_crash_while_rewriting_leaves_the_old_one(
    journal: GroupJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append("g1", [trajectory("a")])

    def crash(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="No space left"):
        journal.rewrite({"g2": [trajectory("b")]})
    monkeypatch.undo()
    assert [group_id for group_id, _ in journal.read()] == ["g1"]
    journal.rewrite({"g3": [trajectory("c")]})
    assert [group_id for group_id, _ in journal.read()] == ["g3"]
    assert [path.name for path in journal.path.parent.iterdir()] == ["journal.bin"]


def write_learner(root: Path, step: int, content: bytes) -> None:
    learner = partial_folder(root, step) / "learner"
    learner.mkdir()
    (learner / "weights.pt").write_bytes(content)


def state(step: int, **changed: Any) -> RunState:
    made = RunState(step, {"order": [1, 2]}, [{"step": step, "loss": 0.5}], 1.5, {"seed": 0}, {"the tasks": "0" * 64})
    return msgspec.structs.replace(made, **changed)


def save(root: Path, step: int, keep: int = 10, protect: tuple[int, ...] = ()) -> Path:
    write_learner(root, step, bytes([step % 256]))
    return commit_checkpoint(root, step, state(step), keep, protect)


def test_checkpoint_committed_holds_weights_and_state(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)
    assert folder == checkpoint_folder(tmp_path, 3)
    assert folder.name == "step_000003"
    assert read_state(folder) == state(3)
    assert (folder / "learner" / "weights.pt").read_bytes() == b"\x03"
    assert [path.name for path in tmp_path.iterdir()] == ["step_000003"]


def test_checkpoint_without_learner_state_is_not_committed(tmp_path: Path) -> None:
    """A learner on another machine that does not share the folder leaves it empty."""
    partial_folder(tmp_path, 3)
    with pytest.raises(CheckpointError, match="and 0 files of the learner in all"):
        commit_checkpoint(tmp_path, 3, state(3), 2)
    assert checkpoint_steps(tmp_path) == []


def test_checkpoint_without_the_part_of_a_rank_is_not_committed(tmp_path: Path) -> None:
    """A rank on a node that does not share the folder leaves its part of the optimiser there."""
    save(tmp_path, 2)
    learner = partial_folder(tmp_path, 3) / "learner"
    learner.mkdir()
    (learner / "mp_rank_00_model_states.pt").touch()
    (learner / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    with pytest.raises(CheckpointError, match=r"holds 1 of 2 parts of the optimiser .* does not share this folder"):
        commit_checkpoint(tmp_path, 3, state(3), 2, optimizer_parts=2)
    assert checkpoint_steps(tmp_path) == [2]
    (learner / "zero_pp_rank_1_mp_rank_00_optim_states.pt").touch()
    commit_checkpoint(tmp_path, 3, state(3), 2, optimizer_parts=2)
    assert checkpoint_steps(tmp_path) == [2, 3]


def test_progress_is_the_last_step_that_was_noted(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert last_progress(root) == 0
    for step in (1, 2, 11):
        note_progress(root, step)
    assert last_progress(root) == 11
    assert checkpoint_steps(root) == []


def test_checkpoint_crash_before_commit_leaves_the_previous_one_newest(tmp_path: Path) -> None:
    save(tmp_path, 3)
    (partial_folder(tmp_path, 6) / "weights.bin").write_bytes(b"half")
    assert checkpoint_steps(tmp_path) == [3]


def test_checkpoint_crash_while_writing_the_state_leaves_the_previous_one_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 3)

    def crash(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 6)
    assert checkpoint_steps(tmp_path) == [3]


def test_checkpoint_partial_folder_forgets_what_a_crash_left(tmp_path: Path) -> None:
    (partial_folder(tmp_path, 6) / "old.bin").write_bytes(b"half")
    assert list(partial_folder(tmp_path, 6).iterdir()) == []
    assert checkpoint_steps(save(tmp_path, 6).parent) == [6]


def test_checkpoint_same_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 3)
    write_learner(tmp_path, 3, b"again")
    commit_checkpoint(tmp_path, 3, state(3, rl_seconds=9.0), keep=1)
    assert read_state(checkpoint_folder(tmp_path, 3)).rl_seconds == 9.0
    assert (checkpoint_folder(tmp_path, 3) / "learner" / "weights.pt").read_bytes() == b"again"


def test_checkpoint_crash_between_two_names_gives_the_replaced_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 3)
    rename = Path.rename

    def crash(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 3)
    monkeypatch.undo()
    assert checkpoint_steps(tmp_path) == [3]
    assert read_state(checkpoint_folder(tmp_path, 3)) == state(3)


def test_checkpoint_crash_while_removing_leaves_no_half_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 3)
    removed: list[Path] = []

    def crash(path: Path, ignore_errors: bool = False) -> None:
        removed.append(path)
        if path.name.endswith(".discarded") and path.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", crash)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 4, keep=1)
    monkeypatch.undo()
    assert removed
    assert checkpoint_steps(tmp_path) == [4]
    save(tmp_path, 5, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000005"]


def test_checkpoint_crash_while_removing_the_replaced_one_does_not_bring_half_of_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 3)

    def crash(path: Path, ignore_errors: bool = False) -> None:
        if ".discarded" in path.name and path.exists():
            (path / "learner" / "weights.pt").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", crash)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 3)
    monkeypatch.undo()
    save(tmp_path, 4, keep=1)
    assert checkpoint_steps(tmp_path) == [4]
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


def test_checkpoint_keep_removes_the_oldest(tmp_path: Path) -> None:
    for step in (1, 2, 10, 20):
        save(tmp_path, step, keep=2)
    assert checkpoint_steps(tmp_path) == [10, 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000010", "step_000020"]


def test_checkpoint_protected_ones_stay_and_do_not_count(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step, keep=2, protect=(1, 2))
    assert checkpoint_steps(tmp_path) == [1, 2, 4, 5]


def test_checkpoint_steps_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000, 7):
        save(tmp_path, step)
    assert checkpoint_steps(tmp_path) == [7, 999_999, 1_000_000]


@pytest.mark.parametrize("content", [b"", b'{"completed_steps": 3', b"\xff\xfe", b"[" * 10**5])
def test_checkpoint_unreadable_state_is_a_checkpoint_error(tmp_path: Path, content: bytes) -> None:
    folder = save(tmp_path, 3)
    (folder / "run.json").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"run\.json cannot be read .*; remove .*step_\d+ to resume from the one before\.$"
    ):
        read_state(folder)


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_checkpoint_cut_file_of_the_learner_is_a_checkpoint_error(tmp_path: Path, size: int) -> None:
    torch.save({"weights": torch.zeros(100)}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    write_learner(tmp_path, 3, whole)
    folder = commit_checkpoint(tmp_path, 3, state(3), keep=1)
    check_learner_files(folder)
    (folder / "learner" / "weights.pt").write_bytes(whole[:size])
    with pytest.raises(CheckpointError, match=r"weights\.pt is cut or cannot be read; remove .*step_000003 to resume"):
        check_learner_files(folder)


def test_checkpoint_missing_state_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_state(checkpoint_folder(tmp_path, 4))


def test_checkpoint_state_keeps_large_numbers_and_text(tmp_path: Path) -> None:
    queue = {"seed": 2**62, "share": 0.1, "ids": ["\u00fc", "b"], "none": None}
    write_learner(tmp_path, 1, b"weights")
    folder = commit_checkpoint(tmp_path, 1, state(1, queue=queue), keep=1)
    assert read_state(folder).queue == queue
    assert json.loads((folder / "run.json").read_text())["queue"] == queue


@pytest.mark.parametrize("content", [b"{}", b"null", b'{"completed_steps": 3}'])
def test_checkpoint_state_of_another_version_is_a_checkpoint_error_that_removes_nothing(
    tmp_path: Path, content: bytes
) -> None:
    folder = save(tmp_path, 3)
    (folder / "run.json").write_bytes(content)
    with pytest.raises(
        CheckpointError, match="go on with the version that wrote it, or choose another run_name"
    ) as caught:
        read_state(folder)
    assert "remove" not in str(caught.value)


def test_checkpoint_state_keeps_numbers_of_numpy(tmp_path: Path) -> None:
    """Rewards of one's own may be such, and a curriculum keeps them."""
    write_learner(tmp_path, 1, b"weights")
    folder = commit_checkpoint(tmp_path, 1, state(1, queue={"highest": np.float64(0.5)}), keep=1)
    assert read_state(folder).queue == {"highest": 0.5}


def test_checkpoint_state_keeps_a_metric_that_is_not_a_number(tmp_path: Path) -> None:
    write_learner(tmp_path, 1, b"weights")
    folder = commit_checkpoint(tmp_path, 1, state(1, history=[{"step": 1, "learner/kl": math.nan}]), keep=1)
    assert math.isnan(read_state(folder).history[0]["learner/kl"])


def test_checkpoint_files_are_on_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses power may keep a new name and lose the content that was not flushed."""
    flushed: dict[Path, bool] = {}

    def note(descriptor: int) -> None:
        flushed[Path(os.readlink(f"/proc/self/fd/{descriptor}"))] = checkpoint_folder(tmp_path, 3).exists()

    monkeypatch.setattr(os, "fsync", note)
    save(tmp_path, 3)
    partial = tmp_path / ".step_000003.partial"
    before = [partial, partial / "run.json", partial / "learner", partial / "learner" / "weights.pt"]
    assert flushed == {**dict.fromkeys(before, False), tmp_path: True}


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"the tasks": "a" * 64, "the index of kb": "c" * 32}, "the index of kb: bbbbbbbbbbbb then, cccccccccccc now"),
        ({"the tasks": "d" * 64, "the index of kb": "b" * 32}, "the tasks: aaaaaaaaaaaa then, dddddddddddd now"),
        ({"the index of wiki": "e" * 32}, "the index of wiki: none then, eeeeeeeeeeee now"),
    ],
)
def test_checkpoint_made_on_other_data_is_refused_naming_them(tmp_path: Path, now: dict[str, str], named: str) -> None:
    before = {"the tasks": "a" * 64, "the index of kb": "b" * 32}
    check_same_data(tmp_path, before, dict(before))
    check_same_data(tmp_path, before, {"the tasks": "a" * 64})
    with pytest.raises(
        CheckpointError,
        match=rf"\({named}\); put back the data, and for an index the versions of what makes it, or choose another run_name",
    ):
        check_same_data(tmp_path, before, now)
