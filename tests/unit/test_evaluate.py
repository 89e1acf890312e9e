"""The evaluate command: its settings, a whole run without a model, and what it says of bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rl_cluster.datasets.tables import read_tasks
from rl_cluster.errors import ConfigError, DataError
from rl_cluster.evaluate import EVALUATE, run
from rl_cluster.evaluation.metrics import ndcg_at_k
from rl_cluster.evaluation.question_sets import question_sets
from rl_cluster.evaluation.report.flat import flat_numbers
from rl_cluster.evaluation.settings import EvaluateConfig, systems_of
from rl_cluster.own_folder import own_folder
from tests.helpers.chat_server import Answer, chat_server, completion
from tests.helpers.configuration import load
from tests.helpers.small_world import write_pumps

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = sorted(path.stem for path in (ROOT / "hydra_conf" / "system").glob("*.yaml"))
DRIFTS = sorted(path.stem for path in (ROOT / "hydra_conf" / "evaluation" / "drift").glob("*.yaml"))
OPEN = {
    "model": ["systems.model.path=/models/policy"],
    "endpoint": ["systems.endpoint.url=http://127.0.0.1:8000/v1", "systems.endpoint.model=big"],
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CLUSTER_CACHE", str(tmp_path / "cache"))


def config(tmp_path: Path, *overrides: str) -> EvaluateConfig:
    fixed = ["tracking=none", f"output_dir={tmp_path / 'out'}", "evaluation.bootstrap_resamples=1000", "system=[bm25]"]
    return load(EVALUATE, [*fixed, "environment.tools=[bm25_search]", *overrides])


@pytest.mark.parametrize("choice", SYSTEMS)
def test_load_shipped_system_loads(choice: str) -> None:
    loaded = EVALUATE.load([f"system=[{choice}]", *OPEN.get(choice, [])])
    assert list(systems_of(loaded)) == [choice]


@pytest.mark.parametrize("choice", DRIFTS)
def test_load_shipped_drift_loads(choice: str) -> None:
    loaded = EVALUATE.load([f"evaluation/drift=[{choice}]"])
    assert set(loaded.evaluation.drift) == ({*DRIFTS} - {"suite"} if choice == "suite" else {choice})


def test_load_default_is_the_three_baselines_and_no_drift() -> None:
    loaded = EVALUATE.load([])
    assert list(systems_of(loaded)) == ["bm25", "vector", "fusion"]
    assert loaded.evaluation.drift == {}


def test_load_single_folder_needs_no_brackets() -> None:
    assert load(EVALUATE, ["folders=/a"]).folders == load(EVALUATE, ["folders=[/a]"]).folders == ("/a",)


def test_load_second_model_has_a_name_of_its_own() -> None:
    overrides = [
        "system=[bm25,model]",
        "systems.model.path=/a",
        "+system@systems.before=model",
        "systems.before.path=/b",
    ]
    systems = systems_of(load(EVALUATE, [*overrides, "reference=before"]))
    assert list(systems) == ["before", "bm25", "model"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["system=[bm26]"], "system/bm26 is no choice of hydra_conf; available: bm25,"),
        (["system=[model]"], "systems.model.path is not set"),
        (["reference=gpt"], "reference=gpt is none of the systems bm25, vector, fusion"),
        (["+repeats.trained=[bm25,seed1]"], "repeats.trained names seed1, which is none of the systems bm25,"),
        (["samples=4"], "samples=4 at temperature=0"),
        (
            ["evaluation.pass_k=[1,4,8]", "samples=4", "temperature=1.0"],
            "evaluation.pass_k=[1, 4, 8]: pass@8 needs 8 episodes of each question, but samples=4",
        ),
        (["output_dir=here"], "output_dir: 'here' is relative"),
        (["systems.bm25.tool=grep"], "systems.bm25.tool='grep' is refused"),
        (["systems.bm25.kind=oracle"], "systems.bm25.kind='oracle' is unknown"),
        (["systems.bm25.prices.per_search=-1.0"], "systems.bm25.prices.per_search=-1.0 is refused"),
        (["evaluation/drift=[search_slow]", "evaluation.drift.search_slow.rate=2.0"], "rate=2.0 is refused"),
        (["system=[endpoint]", "systems.endpoint.url=http://me:pw@host/v1", "systems.endpoint.model=m"], "credentials"),
        (["split=dev"], "split='dev' is refused"),
        (["search.shards=2"], "search.shards=2 spreads a search service, but an evaluation searches each index whole"),
        (["search.max_replicas=3"], "set search.max_replicas=1"),
        (["sampels=2"], "did you mean 'samples'?"),
    ],
)
def test_load_wrong_setting_is_refused_in_one_sentence(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(EVALUATE, overrides)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("samples", "expected"), [(1, (1,)), (4, (1, 2, 4)), (7, (1, 2, 4)), (8, (1, 2, 4, 8))])
def test_load_default_pass_k_goes_up_to_the_samples(samples: int, expected: tuple[int, ...]) -> None:
    assert load(EVALUATE, [f"samples={samples}", "temperature=1.0"]).measure_settings.pass_k == expected


def test_load_imports_nothing_heavy() -> None:
    program = (
        "import sys; from rl_cluster.evaluate import EVALUATE; EVALUATE.load([]);"
        "heavy = {'torch', 'ray', 'vllm', 'transformers', 'mlflow', 'faiss'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_run_baseline_scripted_and_endpoint_under_a_drift_writes_the_report(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "pumps")
    with chat_server(lambda body: completion("answer: pumps-0 pumps-1")) as server:
        settings = config(
            tmp_path,
            f"folders=[{folder}]",
            "system=[bm25,scripted,endpoint]",
            f"systems.endpoint.url={server.url}",
            "systems.endpoint.model=big",
            "systems.endpoint.prices.output_per_million=10.0",
            "evaluation/drift=[empty_retriever]",
        )
        assert run(settings) == 0
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(written["systems"]) == ["bm25", "scripted", "endpoint"]
    assert [pair["name"] for pair in written["pairs"]] == ["endpoint - bm25", "scripted - bm25"]
    assert written["systems"]["bm25"]["datasets"]["pumps"]["n"] == 12
    assert written["systems"]["bm25"]["overall"]["measures"]["recall@100"]["mean"] > 0.9
    assert written["systems"]["endpoint"]["overall"]["measures"]["cost"]["mean"] == pytest.approx(7e-5)
    (drift,) = written["drift"]
    assert drift["systems"]["bm25"]["ndcg@10"] < -0.7
    assert drift["systems"]["endpoint"]["ndcg@10"] == 0.0
    assert (tmp_path / "out" / "evaluations" / "drift" / "empty_retriever" / "bm25" / "pumps.json").is_file()
    assert "report.html" in [path.name for path in (tmp_path / "out").iterdir()]
    assert written["notes"][0].startswith("Documents handed in at most: bm25 12, scripted")
    assert written["notes"][0] in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.slow
def test_run_episodes_that_are_played_at_once_share_the_seconds_that_they_cost(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "pumps")

    def answer(body: dict[str, Any]) -> Answer:
        time.sleep(0.2)
        return completion("answer: pumps-0")

    with chat_server(answer) as server:
        endpoint = ["system=[endpoint]", f"systems.endpoint.url={server.url}", "systems.endpoint.model=big"]
        priced = ["systems.endpoint.concurrency=12", "systems.endpoint.prices.per_second=1.0"]
        assert run(config(tmp_path, f"folders=[{folder}]", *endpoint, *priced)) == 0
    found = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]["endpoint"]["overall"]
    assert found["latency_s"] > 0.2
    assert 0.2 < 12 * found["measures"]["cost"]["mean"] < 12 * found["latency_s"] / 3


def test_run_several_corpora_are_searched_apart(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "shops", ("red", "blue"))
    assert run(config(tmp_path, f"folders=[{folder}]", "system=[bm25,scripted]", "+repeats.rule=[scripted]")) == 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["repeats"][0]["n"] == 24
    found = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]["bm25"]
    assert set(found["pieces"]) == {"shops/blue", "shops/red"}
    assert all(part["ndcg@10"] > 0.7 for part in found["pieces"].values())
    assert {name: part["n"] for name, part in found["datasets"].items()} == {"shops": 24}
    assert found["datasets"]["shops"] == found["overall"]


def test_run_drift_that_does_not_apply_has_no_number(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "pumps")
    drifts = "evaluation/drift=[tools_renamed,schema_changed,other_k]"
    assert run(config(tmp_path, f"folders=[{folder}]", "system=[bm25,scripted]", drifts)) == 0
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    found = {drift["name"]: (list(drift["systems"]), drift["does_not_apply"]) for drift in written["drift"]}
    assert found == {
        "tools_renamed": (["scripted"], ["bm25"]),
        "schema_changed": ([], ["bm25", "scripted"]),
        "other_k": (["scripted"], ["bm25"]),
    }
    assert "| other\\_k | bm25 | does not apply |" in (tmp_path / "out" / "report.md").read_text()


def test_flat_numbers_have_the_values_of_the_report(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "shops", ("red", "blue"))
    drift = "evaluation/drift=[search_failing]"
    overrides = [f"folders=[{folder}]", "system=[bm25,scripted]", drift, "+repeats.rule=[scripted]"]
    assert run(config(tmp_path, *overrides)) == 0
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    flat = flat_numbers(written, written["drift"])
    bm25 = written["systems"]["bm25"]
    assert flat["eval/bm25/shops/red/ndcg@10"] == bm25["pieces"]["shops/red"]["ndcg@10"]
    assert flat["eval/bm25/shops/ndcg@10"] == bm25["datasets"]["shops"]["ndcg@10"]
    for name, found in bm25["overall"]["measures"].items():
        if isinstance(found, dict) and "mean" in found:
            assert flat[f"eval/bm25/all/measures/{name}/mean"] == found["mean"]
            assert flat[f"eval/bm25/all/measures/{name}/ci95/low"] == found["ci95"][0]
    (pair,) = written["pairs"]
    for key in ("ndcg@10", "p", "p_holm", "ranking", "failure_avoidance", "n"):
        assert flat[f"paired/scripted_against_bm25/all/{key}"] == pair["overall"][key]
        assert flat[f"paired/scripted_against_bm25/shops/blue/{key}"] == pair["pieces"]["shops/blue"][key]
    assert flat["paired/scripted_against_bm25/all/ci95/high"] == pair["overall"]["ci95"][1]
    assert flat["repeats/rule/ndcg@10"] == written["repeats"][0]["ndcg@10"]
    failing = written["drift"][0]["systems"]["bm25"]
    assert flat["drift/search_failing/bm25/ndcg@10"] == failing["ndcg@10"] < 0
    assert flat["drift/search_failing/bm25/injected"] == failing["injected"] > 0
    assert flat["drift/search_failing/bm25/ci95/low"] == failing["ci95"][0]


@pytest.mark.slow
def test_run_tracked_has_every_number_of_the_report_in_mlflow(tmp_path: Path) -> None:
    import mlflow

    folder = write_pumps(tmp_path / "pumps")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    overrides = [f"folders=[{folder}]", "system=[bm25,scripted]", "evaluation/drift=[search_slow]"]
    assert run(config(tmp_path, *overrides, "tracking=mlflow", f"tracking.uri={uri}")) == 0
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    client = mlflow.MlflowClient(uri)
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    (tracked,) = client.search_runs([experiment.experiment_id])
    expected = {name.replace("@", "_at_"): number for name, number in flat_numbers(written, written["drift"]).items()}
    assert tracked.data.metrics == expected
    assert len(expected) > 100


def test_run_few_questions_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pumps(tmp_path / "pumps")
    assert run(config(tmp_path, f"folders=[{folder}]", "limit=5")) == 0
    assert "only 5 questions" in (tmp_path / "out" / "report.md").read_text()
    assert "; n<10]" in capsys.readouterr().out


def test_run_keeps_the_ranking_of_every_episode(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "pumps")
    assert run(config(tmp_path, f"folders=[{folder}]")) == 0
    kept = json.loads((tmp_path / "out" / "evaluations" / "undisturbed" / "bm25" / "pumps.json").read_text())
    assert len(kept["records"]) == 12
    for record in kept["records"]:
        gains = next(
            t.gains for t in read_tasks(folder / "tasks.parquet", "test", "pumps") if t.task_id == record["task_id"]
        )
        assert ndcg_at_k(record["ranking"], gains, 10) == record["ndcg"]


def test_run_drift_is_shown_beside_the_undisturbed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pumps(tmp_path / "pumps")
    assert run(config(tmp_path, f"folders=[{folder}]", "evaluation/drift=[empty_retriever,tools_renamed]")) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (empty,) = [line for line in lines if line[:2] == ["empty_retriever", "bm25"]]
    assert float(empty[2]) < -0.7
    assert empty[-2:] == ["0", "12"]
    assert [line[2:5] for line in lines if line[:2] == ["tools_renamed", "bm25"]] == [["does", "not", "apply"]]


@pytest.mark.slow
def test_run_system_whose_episodes_are_all_lost_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> Answer:
        asked.append(body)
        return completion("ok") if len(asked) == 1 else (500, {"error": {"message": "down"}})

    with chat_server(answer) as server:
        overrides = ["system=[bm25,endpoint]", f"systems.endpoint.url={server.url}", "systems.endpoint.model=big"]
        overrides += ["systems.endpoint.max_retries=0", "run_name=bought"]
        assert run(config(tmp_path, f"folders=[{folder}]", *overrides)) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "error: infrastructure failed every episode of endpoint" in said
    assert "run_name=bought plays them again" in said


def test_run_folder_of_another_evaluation_that_runs_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    with own_folder(tmp_path / "out", "evaluation"):
        assert run(config(tmp_path, f"folders=[{folder}]")) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert f"output_dir={tmp_path / 'out'}: another evaluation runs in this folder" in said
    assert "12 questions" not in said
    assert run(config(tmp_path, f"folders=[{folder}]")) == 0


def test_run_folder_that_cannot_be_made_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file")
    assert run(config(tmp_path, f"folders=[{write_pumps(tmp_path / 'pumps')}]")) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert f"output_dir={tmp_path / 'out'} cannot be written (it is no folder)" in said
    assert "12 questions" not in said


@pytest.mark.slow
def test_evaluate_interrupted_in_the_background_says_how_to_go_on(tmp_path: Path) -> None:
    """A shell that starts a program in the background has it ignore SIGINT."""
    folder = write_pumps(tmp_path / "pumps")
    busy = threading.Event()

    def answer(body: dict[str, Any]) -> Answer:
        busy.set()
        time.sleep(1)
        return completion("answer: pumps-0")

    with chat_server(answer) as server:
        overrides = [f"folders={folder}", "system=[endpoint]", f"systems.endpoint.url={server.url}", "tracking=none"]
        overrides += ["systems.endpoint.model=big", "run_name=later", f"output_dir={tmp_path / 'out'}"]
        command = [sys.executable, "-m", "rl_cluster.evaluate", *overrides]
        ignoring = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
        )
        started = subprocess.Popen(
            [sys.executable, "-c", ignoring, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert busy.wait(120)
        started.send_signal(signal.SIGINT)
        said = " ".join(started.communicate(timeout=60)[0].split())
    assert started.returncode == 130
    assert "interrupted; what is complete is kept, and the same command with run_name=later goes on from there" in said


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1"])
def test_run_unreachable_endpoint_is_one_sentence(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pumps(tmp_path / "pumps")
    overrides = ["system=[endpoint]", f"systems.endpoint.url={url}", "systems.endpoint.model=m"]
    assert run(config(tmp_path, f"folders=[{folder}]", *overrides, "systems.endpoint.max_retries=0")) == 2
    said = capsys.readouterr().out
    assert "cannot be reached" in said
    assert "Traceback" not in said


def test_run_endpoint_without_an_address_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    overrides = ["system=[bm25,endpoint]", "systems.endpoint.url=http://host:abc/v1", "systems.endpoint.model=m"]
    assert run(config(tmp_path, f"folders=[{folder}]", *overrides)) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "url=http://host:abc/v1 is no address (Invalid port: 'abc')" in said
    assert "nDCG@10" not in said


@pytest.mark.slow
def test_run_endpoint_without_room_for_one_question_counts_it_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")

    def answer(body: dict[str, Any]) -> Answer:
        too_long = {"error": {"message": "maximum context length is 64 tokens", "code": "context_length_exceeded"}}
        return (400, too_long) if "mill" in body["messages"][-1]["content"] else completion("answer: pumps-0")

    with chat_server(answer) as server:
        overrides = ["system=[endpoint]", f"systems.endpoint.url={server.url}", "systems.endpoint.model=big"]
        assert run(config(tmp_path, f"folders=[{folder}]", *overrides)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "failed: 1 sequence_limit; such as: http://127.0.0.1" in said
    assert "the context of big has no room for an episode" in said
    found = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]["endpoint"]["overall"]
    assert (found["failures"], found["infrastructure"], found["n"]) == ({"sequence_limit": 1}, 0, 12)


def test_run_filter_that_no_document_can_meet_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    field = "evaluation.drift.new_filter.field=colour"
    assert run(config(tmp_path, f"folders=[{folder}]", "evaluation/drift=[new_filter]", field)) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "evaluation.drift.new_filter filters by 'colour', which no document of pumps has" in said
    assert "nDCG@10" not in said


def test_run_filter_field_that_no_document_has_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_pumps(tmp_path / "pumps")
    assert run(config(tmp_path, f"folders=[{folder}]", "environment.filter_fields=[kind,colour]")) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "no document of pumps has 'colour' in its metadata" in said
    assert "nDCG@10" not in said
    assert run(config(tmp_path, f"folders=[{folder}]", "environment.filter_fields=[kind]")) == 0


def test_run_index_over_the_memory_that_is_set_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pumps(tmp_path / "pumps")
    assert run(config(tmp_path, f"folders=[{folder}]", "search.memory_gib=0.000001")) == 2
    assert "but search.memory_gib=1e-06" in " ".join(capsys.readouterr().out.split())
    assert run(config(tmp_path, f"folders=[{folder}]")) == 0
    again = f"output_dir={tmp_path / 'again'}"  # the index is built by now, but must not be opened
    assert run(config(tmp_path, f"folders=[{folder}]", again, "search.memory_gib=0.000001")) == 2


@pytest.mark.slow
def test_run_search_over_its_time_is_a_counted_loss(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "pumps")
    call = completion(calls=[("bm25_search", {"query": "pump"})])
    with chat_server(lambda body: call if len(body["messages"]) > 1 else completion("ready")) as server:
        systems = [
            "system=[bm25,endpoint]",
            f"systems.endpoint.url={server.url}",
            "systems.endpoint.model=big",
        ]
        assert run(config(tmp_path, f"folders=[{folder}]", *systems, "search.timeout_s=0.000001")) == 1
    for found in json.loads((tmp_path / "out" / "report.json").read_text())["systems"].values():
        assert found["overall"]["infrastructure_by_reason"] == {"tool_timeout": 12}


def test_question_sets_corpora_that_bear_the_name_of_their_folder_bear_it_once(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "freshstack", ("red", "blue"))
    for name in ("tasks", "corpus"):
        path = folder / f"{name}.parquet"
        table = pq.read_table(path)
        renamed = [f"freshstack/{corpus}" for corpus in table["corpus"].to_pylist()]
        pq.write_table(table.set_column(table.column_names.index("corpus"), "corpus", [renamed]), path)
    sets = question_sets([str(folder)], load(EVALUATE, []).data, "test", None)
    assert [(found.dataset, found.corpus) for found in sets] == [
        ("freshstack/blue", "freshstack/blue"),
        ("freshstack/red", "freshstack/red"),
    ]


def test_question_sets_bad_folders_are_named(tmp_path: Path) -> None:
    data = load(EVALUATE, []).data
    with pytest.raises(DataError, match=r"nowhere: there is no such folder"):
        question_sets([str(tmp_path / "nowhere")], data, "test", None)
    with pytest.raises(DataError, match=r"corpus\.parquet is missing; name one that `rl_cluster.prepare` has written"):
        question_sets([str(tmp_path)], data, "test", None)
    (tmp_path / "tasks.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"corpus\.parquet is missing; prepare the data set with its documents"):
        question_sets([str(tmp_path)], data, "test", None)
    first, second = write_pumps(tmp_path / "a" / "pumps"), write_pumps(tmp_path / "b" / "pumps")
    with pytest.raises(DataError, match="two sets named 'pumps'"):
        question_sets([str(first), str(second)], data, "test", None)
    with pytest.raises(DataError, match="the split 'train' has no task"):
        question_sets([str(first)], data, "train", None)


def test_dry_run_plays_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pumps(tmp_path / "pumps")
    assert run(config(tmp_path, f"folders=[{folder}]", "dry_run=true")) == 0
    assert "pumps: 12 questions over the corpus pumps" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
