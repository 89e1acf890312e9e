"""An evaluation that ends early: what was complete is read back, the rest is played, and nothing else is ever overwritten."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.datasets.task import Task
from rl_cluster.episodes.trajectory import Trajectory
from rl_cluster.errors import ClusterError, ConfigError
from rl_cluster.evaluate import EVALUATE, run
from rl_cluster.evaluation import part_settings
from rl_cluster.evaluation.kept import KeptPart, KeptParts, Part
from rl_cluster.evaluation.part_settings import weights_digest
from rl_cluster.evaluation.players.baseline import Baseline
from rl_cluster.evaluation.players.scripted import Scripted
from rl_cluster.evaluation.world import World
from tests.helpers.chat_server import Answer, chat_server, completion
from tests.helpers.configuration import load
from tests.helpers.small_world import write_pumps


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pumps(tmp_path / "shops", ("red", "blue"))


def evaluate(out: Path, folder: Path, *overrides: str) -> int:
    fixed = ["tracking=none", f"output_dir={out}", f"folders=[{folder}]", "evaluation.bootstrap_resamples=1000"]
    return run(load(EVALUATE, [*fixed, "environment.tools=[bm25_search]", *overrides]))


def numbers(out: Path) -> dict[str, Any]:
    """The report's numbers but for those that are times."""
    report = json.loads((out / "report.json").read_text())
    kept = {key: report[key] for key in ("systems", "pairs", "drift")}
    text = re.sub(r'"latency_s(_ci95)?": (\{[^}]*\}|\[[^\]]*\]|[-.e\d]+)', '"latency_s": 0', json.dumps(kept))
    return json.loads(text)


def refuse(monkeypatch: pytest.MonkeyPatch, player: type) -> None:
    async def play(self: Any, world: World, task: Task, number: int) -> Trajectory:
        raise AssertionError(f"{task.task_id} was played again")

    monkeypatch.setattr(player, "play", play)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "code"), [(ClusterError("The engine of scripted died."), 2), (KeyboardInterrupt(), 130)]
)
def test_run_that_fails_late_is_continued_by_the_same_command(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    code: int,
) -> None:
    overrides = ["system=[bm25,scripted]", "evaluation/drift=[empty_retriever,tools_renamed]"]
    out = tmp_path / "out"
    whole = Scripted.play

    async def failing(self: Scripted, world: World, task: Task, number: int) -> Trajectory:
        if task.task_id == "red-q5" and world.drift.description.startswith("no search"):
            raise failure
        return await whole(self, world, task, number)

    with monkeypatch.context() as patched:
        patched.setattr(Scripted, "play", failing)
        assert evaluate(out, folder, *overrides) == code
    assert not (out / "report.json").exists()
    capsys.readouterr()
    with monkeypatch.context() as patched:
        refuse(patched, Baseline)
        assert evaluate(out, folder, *overrides) == 0
    said = " ".join(capsys.readouterr().out.split())
    # Of the data set that stood first all six parts; of the other one both undisturbed and the baseline's drifted one.
    assert f"9 of 12 parts are read back from {out / 'evaluations'}" in said
    assert evaluate(tmp_path / "at_once", folder, *overrides) == 0
    assert numbers(out) == numbers(tmp_path / "at_once")
    assert '"episodes": {"bm25"' in (out / "report.html").read_text()


def test_run_continued_under_failing_searches_meets_the_failures_that_every_system_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    overrides = ["system=[bm25]", "+system@systems.again=bm25", "evaluation/drift=[search_failing]"]
    overrides += ["evaluation.drift.search_failing.rate=0.5"]
    played: list[str] = []
    whole = Baseline.play

    async def failing(self: Baseline, world: World, task: Task, sample: int) -> Trajectory:
        played.append(task.task_id)
        if len(played) == 3 * 12 + 5:  # both undisturbed and the first one's drifted run are whole then
            raise ClusterError("gone")
        return await whole(self, world, task, sample)

    with monkeypatch.context() as patched:
        patched.setattr(Baseline, "play", failing)
        assert evaluate(tmp_path / "out", folder, *overrides) == 2
    assert evaluate(tmp_path / "out", folder, *overrides) == 0
    assert evaluate(tmp_path / "at_once", folder, *overrides) == 0
    (drift,) = numbers(tmp_path / "out")["drift"]
    assert drift["systems"]["bm25"] == drift["systems"]["again"]
    assert 0 < drift["systems"]["again"]["injected"] < 12
    assert numbers(tmp_path / "out") == numbers(tmp_path / "at_once")


@pytest.mark.slow
def test_run_again_after_losses_plays_the_lost_episodes_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    down = True

    def answer(body: dict[str, Any]) -> Answer:
        lost = down and "mill" in json.dumps(body["messages"])
        return (500, "down") if lost else completion("answer: pumps-0 pumps-1")

    with chat_server(answer) as server:
        overrides = ["system=[endpoint]", f"systems.endpoint.url={server.url}", "systems.endpoint.model=big"]
        overrides += ["systems.endpoint.max_retries=0", "samples=2", "temperature=1.0"]
        assert evaluate(tmp_path / "out", folder, *overrides) == 0
        said = capsys.readouterr().out
        assert re.search(r"pumps: endpoint nDCG@10 0\.1\d\d, failed: 2 engine_error; such as: http", said)
        before = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]["endpoint"]["overall"]
        asked, down = len(server.bodies), False
        assert evaluate(tmp_path / "out", folder, *overrides) == 0
        assert len(server.bodies) == asked + 1 + 2
        assert "1 of 1 parts are read back" in capsys.readouterr().out
        after = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]["endpoint"]["overall"]
        assert evaluate(tmp_path / "out", folder, *overrides) == 0
        assert len(server.bodies) == asked + 1 + 2
    assert (before["infrastructure"], after["infrastructure"]) == (2, 0)
    assert (before["episodes"], after["episodes"]) == (24, 24)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["seed=1"], "was made with seed=0, this evaluation asks for 1"),
        (["limit=3"], "was made with tasks=12 with digest"),
        (["environment.k=3"], "was made with environment.k=4, this evaluation asks for 3"),
        (["search/lexical=rank_bm25"], "was made with search.lexical.backend=bm25s"),
        (["evaluation.drift.search_slow.rate=0.9"], "was made with evaluation.drift.search_slow.rate=0.3"),
        (["search.timeout_s=0.001"], "was made with search.timeout_s=None, this evaluation asks for 0.001"),
        (["system=[bm25]"], "holds evaluations/drift/search_slow/scripted/shops%2Fblue.json, which is no part of"),
        (["resume=never"], "holds an evaluation; set resume=auto to continue it"),
    ],
)
def test_run_of_other_settings_in_the_folder_of_an_evaluation_is_refused_and_changes_nothing(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], change: list[str], words: str
) -> None:
    overrides = ["evaluation/drift=[search_slow]", "evaluation.drift.search_slow.delay_s=0.001"]
    assert evaluate(tmp_path / "out", folder, "system=[bm25,scripted]", *overrides) == 0
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    capsys.readouterr()
    system = [] if any(entry.startswith("system=") for entry in change) else ["system=[bm25,scripted]"]
    assert evaluate(tmp_path / "out", folder, *system, *overrides, *change) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert words in said
    assert "choose another run_name or output_dir" in said
    assert files == {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}


def test_run_with_a_system_a_drift_or_prices_more_plays_what_is_new_alone(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate(tmp_path / "out", folder, "system=[bm25]") == 0
    refuse(monkeypatch, Baseline)
    prices = "systems.bm25.prices.per_search=0.5"
    changes = ["evaluation.success_threshold=0.5", "evaluation/drift=[tools_renamed]", "reference=scripted", prices]
    assert evaluate(tmp_path / "out", folder, "system=[bm25,scripted]", *changes) == 0
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["systems"]["bm25"]["overall"]["measures"]["cost"]["mean"] == 0.5
    assert written["drift"][0]["does_not_apply"] == ["bm25"]


def test_run_in_the_folder_of_a_training_run_is_refused(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "run" / "evaluations" / "before_t0.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    assert evaluate(tmp_path / "run", folder, "system=[bm25]") == 2
    assert "holds evaluations/before_t0.json, which is no part of this evaluation" in capsys.readouterr().out
    shutil.rmtree(kept.parent)
    (tmp_path / "run" / "report.json").write_text("{}")
    assert evaluate(tmp_path / "run", folder, "system=[bm25]") == 2
    assert "holds report.json" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"settings": {}, "records": [{}]}'])
def test_kept_part_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    part = Part("bm25", "freshstack/angular", None)
    parts = KeptParts(tmp_path, {part: {}})
    parts.write(part, KeptPart(views={"t": "\ud800"}))
    assert parts.read(part) == KeptPart(views={"t": "\ud800"})
    path = parts.path(part)
    assert path == tmp_path / "evaluations" / "undisturbed" / "bm25" / "freshstack%2Fangular.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"cannot be read .*; remove it to play this part again"):
        KeptParts(tmp_path, {part: {}}).open("auto")


def test_load_default_run_name_has_the_time_in_it() -> None:
    assert re.fullmatch(r"evaluation-\d{8}-\d{6}", EVALUATE.load([]).run_name)


def test_weights_digest_follows_the_files_and_not_their_place_or_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, weights in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    digests = [weights_digest(str(tmp_path / name)) for name in "abc"]
    assert digests[0] == digests[1] != digests[2]
    monkeypatch.setattr(part_settings, "hub_commit", lambda name: "0123")
    assert weights_digest("org/model") == "org/model@0123"
