"""The report's files: nothing from outside is read as markup, and in a browser charts, filters and episodes work."""

from __future__ import annotations

import html
import io
import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape
from rich.console import Console
from scipy import stats

from rl_cluster.algorithms.types import AdvantageSettings
from rl_cluster.episodes.trajectory import Trajectory, Turn
from rl_cluster.errors import Outcome
from rl_cluster.evaluation.comparison import compare_systems
from rl_cluster.evaluation.report import ReportContent, plots, write_report
from rl_cluster.evaluation.report.canvas import Scale, told_apart
from rl_cluster.evaluation.report.content import MAX_TEXT, question_views
from rl_cluster.evaluation.report.markdown import plain
from rl_cluster.evaluation.summary import EpisodeRecord
from rl_cluster.evaluation.table import comparison_table
from rl_cluster.learning.batch import build_step_batch
from tests.helpers.made_report import HOSTILE, SETTINGS, made_report

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture(scope="module")
def content() -> ReportContent:
    return made_report()


@pytest.fixture(scope="module")
def page(content: ReportContent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tmp_path_factory.mktemp("report"), content, {"title": content.title})[2]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]


def test_page_is_self_contained_and_hostile_text_makes_no_element(page: Path) -> None:
    tags = _Tags()
    tags.feed(page.read_text())
    assert tags.addresses == []
    assert "img" not in tags.names
    assert tags.names.count("script") == 2
    assert tags.names.count("svg") == 6
    assert "default-src 'none'" in page.read_text()


def test_report_says_at_which_level_the_smallest_detectable_difference_is_one(page: Path) -> None:
    said = "at the level 0.05 divided by the number of comparisons that p is corrected over"
    assert all(said in page.with_name(name).read_text() for name in ("report.html", "report.md"))
    assert "in 4 of 5 cases, at p &lt; 0.05 / 2 comparisons" in page.read_text()


def test_page_data_comes_back_as_it_was(content: ReportContent, page: Path) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    data = json.loads(found.group(1))
    assert data["questions"] == json.loads(json.dumps(content.questions))
    assert HOSTILE in data["questions"][0]["question"]


def test_markdown_tables_survive_hostile_names(page: Path) -> None:
    text = page.with_name("report.md").read_text()
    assert "<script" not in text
    assert "| Set | Queries | nDCG@10 | Failures | Turns |" in text
    rows = [line for line in text.splitlines() if line.startswith("| wands")]
    assert re.fullmatch(r"\| wands \| 30 \| 0\.\d{4}→0\.\d{4} \| \d+\.\d\d→\d+\.\d\d % \| \d\.\d→\d\.\d \|", rows[0])
    assert "| recipe | before | +0." in text
    assert plain("a|b\n<i>*") == r"a\|b &lt;i&gt;\*"


def test_failures_and_latency_are_shown_with_their_intervals(content: ReportContent, page: Path) -> None:
    measures = content.comparison["systems"]["before"]["overall"]["measures"]
    rate = measures["failure_rates"]["turn_limit"]
    shown = f"{rate['mean']:.1%} [{rate['ci95'][0]:.1%}, {rate['ci95'][1]:.1%}]"
    assert f"| before | all | turn\\_limit | {shown} |" in page.with_name("report.md").read_text()
    assert f"before, turn_limit: {shown}" in page.read_text()
    median = measures["latency_s"]
    assert median["median_ci95"][0] < median["median_ci95"][1]
    shown = f"{median['median']:.2f} [{median['median_ci95'][0]:.2f}, {median['median_ci95'][1]:.2f}] / {median['p95']:.2f} s"
    assert shown in page.with_name("report.md").read_text()
    assert f'title="{shown}"' in page.read_text()


def test_markdown_systems_passes_and_failures_are_shown_for_each_set_and_piece(tmp_path: Path) -> None:
    kinds = {"freshstack/x": Outcome.FINISHED, "freshstack/y": Outcome.NO_ANSWER, "wands": Outcome.FINISHED}
    records = [
        EpisodeRecord(f"t{i}", dataset, outcome, 1.0, 1, searches, 0, 30 * searches, 1.0)
        for i in range(20)
        for searches, (dataset, outcome) in enumerate(kinds.items(), start=1)
        for _ in range(2)
    ]
    found = compare_systems({"agent": records}, [], SETTINGS)
    lines = write_report(tmp_path, ReportContent("sets", found), {})[1].read_text().splitlines()
    tables: dict[str, list[dict[str, str]]] = {"System": [], "Tries of": [], "Failures of": []}
    for title, table in tables.items():
        (start,) = [place for place, line in enumerate(lines) if line.startswith(f"| {title} |")]
        names = lines[start].strip("| ").split(" | ")
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            table.append(dict(zip(names, line.strip("| ").split(" | "), strict=True)))
    systems, tries, failures = tables.values()
    sets = ["freshstack", "freshstack/x", "freshstack/y", "wands", "all"]
    assert [row["Set"] for row in systems] == sets
    assert [(row["Searches"], row["Tokens"]) for row in systems] == [
        ("1.50", "45"), ("1.00", "30"), ("2.00", "60"), ("3.00", "90"), ("2.00", "60"),
    ]  # fmt: skip
    assert [row["Failures"] for row in systems] == ["50.0 %", "0.0 %", "100.0 %", "0.0 %", "33.3 %"]
    assert [(row["Set"], row["k"]) for row in tries] == [(name, k) for name in sets for k in "12"]
    assert [row["pass@k"].split(" [")[0] for row in tries[::2]] == ["0.500", "1.000", "0.000", "1.000", "0.667"]
    assert [row["pass^k"].split(" [")[0] for row in tries[1::2]] == ["0.500", "1.000", "0.000", "1.000", "0.667"]
    assert [(row["Set"], row["Reason"], row["Share of episodes"].split(" [")[0]) for row in failures] == [
        ("freshstack", "no\\_answer", "50.0%"),
        ("freshstack/y", "no\\_answer", "100.0%"),
        ("all", "no\\_answer", "33.3%"),
    ]


def test_questions_most_changed_come_first_and_long_texts_say_that_they_are_cut(content: ReportContent) -> None:
    changes = [abs(view["change"]) for view in content.questions]
    assert changes == sorted(changes, reverse=True)
    assert set(content.questions[0]["episodes"]) == {"before", "after", "bm25"}
    from rl_cluster.datasets.task import Task
    from rl_cluster.evaluation.report import first_views
    from tests.helpers.made_report import play, tasks

    task = tasks()[0]
    long = Task(task.task_id, "x" * (MAX_TEXT + 5), task.corpus, task.gains, dataset=task.dataset)
    views = question_views([long], {"a": first_views([long], [play(long, 1.0, 0.0, random.Random(0))])}, None)
    assert views[0]["question"].endswith("(5 more characters)")


def test_page_of_one_system_without_pairs_or_questions_is_written(content: ReportContent, tmp_path: Path) -> None:
    systems = {"bm25": content.comparison["systems"]["bm25"]}
    alone = ReportContent("alone", {"systems": systems, "pairs": [], "repeats": [], "notes": []})
    paths = write_report(tmp_path, alone, {})
    assert "Episodes, turn by turn" not in paths[2].read_text()


def test_page_of_systems_that_are_all_zero_and_alike_is_written(tmp_path: Path) -> None:
    failed = [EpisodeRecord(f"t{i}", "kb", Outcome.NO_ANSWER, 0.0, 0, 0, 0, 0, 0.0) for i in range(4)]
    comparison = compare_systems({"a": failed, "b": failed}, [("a", "b")], SETTINGS)
    systems = {"a": {**comparison["pairs"][0]["overall"], "injected": 0}}
    drifts = [
        {"name": "d", "description": "x", "systems": systems, "pairs": {"b - a": systems["a"]}, "does_not_apply": ["b"]}
    ]
    paths = write_report(tmp_path, ReportContent("zeros", comparison, drifts=drifts), {})
    assert all("zeros" in path.read_text() for path in paths[1:])
    single = [failed[0]]
    comparison = compare_systems({"a": single, "b": single}, [("a", "b")], SETTINGS)
    paths = write_report(tmp_path, ReportContent("one question", comparison), {})
    assert all("one question" in path.read_text() for path in paths[1:])
    lost = [EpisodeRecord("t", "kb", Outcome.WORKER_LOST, 0.0, 0, 0, 0, 0, 0.0)]
    paths = write_report(tmp_path, ReportContent("all lost", compare_systems({"a": lost}, [], SETTINGS)), {})
    assert all("all lost" in path.read_text() for path in paths[1:])


def test_drift_that_does_not_apply_to_a_system_is_said_and_has_no_number(page: Path) -> None:
    rows = [line for line in page.with_name("report.md").read_text().splitlines() if line.startswith("| slow | bm25")]
    assert rows == ["| slow | bm25 | does not apply | - | - | answers are late |"]
    assert "answers are late; does not apply to bm25" in page.read_text()


def test_drift_against_the_undisturbed_run_is_a_row_of_both_texts_with_its_injected_failures(
    content: ReportContent, page: Path
) -> None:
    p = f"{content.drifts[1]['systems']['after']['p_holm']:.3f}".replace("0.000", "<0.001")
    assert (
        f"| slow | after | +0.010 [-0.020, +0.040] | {p} | 17 | answers are late |"
        in page.with_name("report.md").read_text()
    )
    numbers = f"<td>60</td><td>+0.010 [-0.020, +0.040]</td><td>{html.escape(p)}</td><td>17</td>"
    assert f'<tr><th>slow</th><td>after</td>{numbers}<td class="said">-</td></tr>' in page.read_text()


def test_drift_of_hostile_names_is_escaped_in_the_page(content: ReportContent, tmp_path: Path) -> None:
    part = {**content.drifts[0]["systems"]["after"], "caution": HOSTILE}
    drift = {**content.drifts[0], "name": HOSTILE, "systems": {HOSTILE: part}, "pairs": {}}
    text = write_report(tmp_path, replace(content, drifts=[drift]), {})[2].read_text()
    shown = str(escape(HOSTILE))
    assert f"<tr><th>{shown}</th><td>{shown}</td>" in text
    assert f'<td class="said">{shown}</td></tr>' in text
    assert HOSTILE not in text


def test_pair_of_systems_under_a_drift_is_in_both_texts(page: Path) -> None:
    (row,) = [
        line for line in page.with_name("report.md").read_text().splitlines() if line.startswith("| removed | after - ")
    ]
    assert row.startswith("| removed | after - bm25 | +0.123 [")
    assert "<th>removed</th><td>after - bm25</td>" in page.read_text()


def test_ranking_depth_of_short_and_long_rankings_is_a_note_of_every_file(tmp_path: Path) -> None:
    def played(depth: int) -> list[EpisodeRecord]:
        return [EpisodeRecord(f"t{i}", "kb", Outcome.FINISHED, 0.5, 1, 1, 0, 0, 0.0, handed_in=depth) for i in range(4)]

    both = compare_systems({"bm25": played(100), "agent": played(10)}, [("bm25", "agent")], SETTINGS)
    (note,) = both["notes"]
    assert note.startswith(
        "Documents handed in at most: bm25 100, agent 10. Up to 10 documents, recall@100 is recall@10"
    )
    assert both["systems"]["agent"]["overall"]["ranking_depth"] == 10
    paths = write_report(tmp_path, ReportContent("depths", both), both)
    assert all(note in path.read_text() for path in paths)
    assert compare_systems({"bm25": played(100), "vector": played(60)}, [], SETTINGS)["notes"] == []


def test_episodes_lost_to_infrastructure_are_shown_and_warned_of_in_every_file(tmp_path: Path) -> None:
    whole = [EpisodeRecord(f"t{i}", "kb", Outcome.FINISHED, 0.5, 1, 1, 0, 0, 0.0) for i in range(20)]
    lost = [replace(each, outcome=Outcome.WORKER_LOST) if i < 3 else each for i, each in enumerate(whole)]
    found = compare_systems({"a": lost, "b": whole}, [("a", "b")], SETTINGS)
    systems = {"a": {**found["pairs"][0]["overall"], "injected": 0}}
    drift = {"name": "d", "description": "x", "systems": systems, "pairs": {}, "does_not_apply": []}
    paths = write_report(tmp_path, ReportContent("lost", found, drifts=[drift]), found)
    (note,) = found["notes"]
    assert note.startswith("b - a: a lost 3 and b 0 episodes to infrastructure, which score 0")
    assert all(note in path.read_text() for path in paths)
    lines = paths[1].read_text().splitlines()
    caution = "(3 and 0 episodes lost to infrastructure count 0)"
    assert [line for line in lines if line.startswith(("| kb | +", "| d | a")) and caution not in line] == []
    (header,) = [line for line in lines if line.startswith("| System")]
    (row,) = [line for line in lines if line.startswith("| a | kb | 20")]
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert (cells["Failures"], cells["Lost"]) == ("0.0 %", "3 of 20")
    assert f'<em title="{caution[1:-1]}">lost</em>' in paths[2].read_text()
    assert f'<td class="said">{caution[1:-1]}</td>' in paths[2].read_text()
    console = Console(width=110, file=io.StringIO())
    console.print(comparison_table(found))
    assert isinstance(console.file, io.StringIO)
    said = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["0%", "3", "1.0", "20"] in [words[-4:] for words in said]
    assert ["3,", "0", "20"] in [words[-3:] for words in said]


def test_plots_nothing_to_draw_is_nothing() -> None:
    assert plots.learning_curve([], []) == plots.forest([]) == plots.drifts([]) == ""


def test_reward_band_is_the_interval_of_a_steps_group_means() -> None:
    rewards = {"a": [1.0, 0.6, 0.8], "b": [-1.0, 0.2, 0.5], "c": [0.1, 0.1, 0.1], "d": [0.9, 0.4, 0.5]}
    groups = {
        name: [
            Trajectory(f"{name}{i}", name, name, [Turn([1], [2], [-0.5], [0])], Outcome.FINISHED, r)
            for i, r in enumerate(found)
        ]
        for name, found in rewards.items()
    }
    metrics = build_step_batch(groups, "group_based", AdvantageSettings(), 1).metrics
    means = [sum(found) / len(found) for found in rewards.values()]
    low, high = stats.t.interval(0.95, 3, sum(means) / 4, stats.sem(means))
    assert metrics["rollout/reward/mean"] == pytest.approx((low + high) / 2)
    assert plots.reward_half_widths([metrics]) == pytest.approx([(high - low) / 2], rel=2e-3)


def test_learning_curve_of_steps_that_do_not_tell_their_groups_apart_has_no_band_and_says_so(
    content: ReportContent, page: Path, tmp_path: Path
) -> None:
    assert "Band: 95% intervals of the mean reward over groups" in page.read_text()
    assert plots.learning_curve(content.history, []).count("<polygon") == 1
    older = [{**entry} for entry in content.history]
    del older[3]["analysis/reward_variance_across_groups"]
    assert "<polygon" not in plots.learning_curve(older, [])
    text = write_report(tmp_path, replace(content, history=older), {})[2].read_text()
    assert "No band: the steps do not say how far their groups lie apart." in text
    assert plots.reward_half_widths([{**content.history[0], "training/num_groups": 1}]) is None


def test_forest_of_a_data_set_in_pieces_keeps_their_rows_apart() -> None:
    rng = random.Random(5)
    names = [f"freshstack/a very long topic, number {number} of them" for number in (1, 2)] + ["freshstack/x", "wands"]

    def system() -> list[EpisodeRecord]:
        return [
            EpisodeRecord(f"t{i}", names[i % 4], Outcome.FINISHED, rng.random(), 1, 1, 0, 0, 0.0) for i in range(40)
        ]

    found = compare_systems({"a": system(), "b": system()}, [("a", "b")], SETTINGS)
    texts = re.findall(r"<text x=\"[08]\.0\"[^>]*>([^<]*)</text>", plots.forest(found["pairs"]))
    assert texts[0] == "b - a"
    assert texts[1] == "freshstack"
    assert texts[4:] == ["· x", "wands", "all"]
    assert len(set(texts)) == len(texts)
    assert all(len(text) <= 17 for text in texts)


def test_told_apart_names_that_are_cut_alike_get_their_number() -> None:
    assert told_apart(["seed", "a-model-of-one-kind-a"], 9) == ["seed", "a-mo…nd-a"]
    cut = told_apart(["model-one-is-here", "model-two-is-here", "model-two-is-here"], 11)
    assert cut[0] != cut[1] == cut[2]
    assert all(len(name) <= 11 for name in cut)


def test_quality_against_cost_leaves_out_who_has_no_price_and_says_so(content: ReportContent) -> None:
    systems = content.comparison["systems"]
    drawn = plots.quality_against_cost(systems)
    assert "without a price, so not drawn: bm25" in drawn
    assert drawn.count("<circle") == 2
    alone = plots.quality_against_cost({name: systems[name] for name in ("before", "bm25")})
    assert "tokens read and written per question" in alone
    assert alone.count("<circle") == 2


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [5.0], [-3.0, -3.0], [1e-9]])
@pytest.mark.parametrize("zero", [True, False])
def test_scale_any_values_are_inside_and_have_ticks(values: list[float], zero: bool) -> None:
    scale = Scale.around(values, 0, 100, zero)
    assert scale.low < scale.high
    assert all(scale.low <= value <= scale.high for value in values)
    assert 1 <= len(scale.ticks(4)) <= 20


def test_scale_ticks_are_round_and_inside() -> None:
    assert Scale(0.0, 1.0, 0, 100).ticks(5) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Scale.around([0.3], 0, 1).low < 0.3 < Scale.around([0.3], 0, 1).high


_PROBE = """
<script>
window.addEventListener("error", (event) => { document.title = "error: " + event.message; });
</script>
"""
_ACTIONS = """
<script>
const shown = () => document.querySelectorAll("#list details").length;
const set = (id, value) => { const it = document.getElementById(id); it.value = value; it.dispatchEvent(new Event("input")); };
const result = { all: shown(), broken: window.broken === true, images: document.images.length };
result.charts = [...document.querySelectorAll("figure svg")].filter((svg) => svg.getBoundingClientRect().height > 50).length;
set("dataset", "wands"); result.count = document.getElementById("count").textContent;
set("text", "pump 7?"); result.found = shown();
set("text", ""); set("dataset", ""); set("order", "harmed");
result.harmed = document.querySelector("#list .change").textContent;
set("order", "improved"); result.improved = document.querySelector("#list .change").textContent;
const first = document.querySelector("#list details"); first.open = true; first.dispatchEvent(new Event("toggle"));
result.runs = first.querySelectorAll(".run").length; result.turns = first.querySelectorAll(".turn").length;
document.getElementById("more").click(); result.more = shown();
result.drifts = document.querySelectorAll("#drift td.said").length;
result.scrolled = [...document.querySelectorAll("table")].every((table) => table.parentElement.className === "scroll");
result.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
const out = document.createElement("pre"); out.id = "result"; out.textContent = JSON.stringify(result); document.body.append(out);
if (parent !== window) parent.postMessage(out.textContent, "*");
</script>
"""
_NARROWEST_WINDOW = 500
_FRAMED = """
<!doctype html><title>framed</title><iframe src="{name}" style="width: {width}px; height: 1900px; border: 0"></iframe><script>
window.addEventListener("message", (event) => {{
  const out = document.createElement("pre"); out.id = "result"; out.textContent = event.data; document.body.append(out);
}});
</script>
"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt install chromium)")
@pytest.mark.parametrize("width", [1280, 500, 390])
def test_page_in_chromium_draws_filters_and_opens_episodes_without_an_error(
    content: ReportContent, page: Path, tmp_path: Path, width: int
) -> None:
    text = page.read_text().replace("<head>", f"<head>{_PROBE}", 1).replace("</body>", f"{_ACTIONS}</body>", 1)
    tried = tmp_path / "tried.html"
    tried.write_text(text)
    if width < _NARROWEST_WINDOW:  # as wide as a phone, inside a wider window
        framed = tmp_path / "framed.html"
        framed.write_text(_FRAMED.format(name=tried.name, width=width))
        tried = framed
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={max(width, _NARROWEST_WINDOW)},2000"]
    command += ["--virtual-time-budget=10000", "--dump-dom", tried.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    assert "<title>error" not in done.stdout
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:]
    result = json.loads(found.group(1).replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
    assert result["broken"] is False
    assert result["images"] == 0
    assert result["charts"] == 6
    assert (result["all"], result["more"]) == (25, 50)
    assert result["count"].startswith("25 of 30 questions")
    assert result["found"] == 1
    changes = [view["change"] for view in content.questions]
    assert float(result["harmed"]) == pytest.approx(min(changes), abs=1e-3)
    assert float(result["improved"]) == pytest.approx(max(changes), abs=1e-3)
    assert result["runs"] == 3
    assert result["turns"] >= 6
    assert (result["drifts"], result["scrolled"]) == (3, True)
    assert result["wide"] is False
