"""What CONTRIBUTING says of who imports whom is what the code does."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rl_cluster"
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())
ENTRY_POINTS = {"train.py", "launch.py", "evaluate.py", "serve.py", "preflight.py"}


def documented() -> dict[str, set[str]]:
    """Room -> what the table of CONTRIBUTING allows it to import of ours."""
    rows = re.findall(r"^\| `rl_cluster/(\w+)` \|[^|]*\| ([^|]*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows}


@cache
def imported(file: Path) -> set[str]:
    """The full names of the modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_layout_table_has_every_room() -> None:
    assert sorted(documented()) == ROOMS


@pytest.mark.parametrize("room", ROOMS)
def test_layout_room_imports_what_the_table_says_and_no_more(room: str) -> None:
    names = set().union(*map(imported, (PACKAGE / room).rglob("*.py")))
    found = {name.split(".")[1] for name in names if name.startswith("rl_cluster.")} - {room}
    # The files of the schema are one room.
    assert {"config" if name.startswith("config") else name for name in found} == documented()[room]


def test_layout_rooms_import_rooms_above_them_alone() -> None:
    above: set[str] = set()
    for room, allowed in documented().items():
        assert allowed & set(ROOMS) <= above, room
        above.add(room)


def test_invariants_are_each_named_by_a_test() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Invariants")[2].partition("\n## ")[0]
    listed = {int(number) for number in re.findall(r"^(\d+)\. ", text, re.M)}
    named: set[int] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for first, last, more in re.findall(
            r"[Ii]nvariants? (\d+)(?: to (\d+))?((?:, \d+)*)", file.read_text(encoding="utf-8")
        ):
            named |= {*range(int(first), int(last or first) + 1), *map(int, re.findall(r"\d+", more))}
    assert listed == set(range(1, 11)) == named


def test_layout_only_entry_points_import_ray() -> None:
    files = {path for path in PACKAGE.rglob("*.py") if {n.split(".")[0] for n in imported(path)} & {"ray", "actors"}}
    assert {str(path.relative_to(PACKAGE)) for path in files} == ENTRY_POINTS


def forking_calls(source: str) -> list[str]:
    """Calls that start a process as a copy of this one, with its threads' locks as they are."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called.endswith("ProcessPoolExecutor"):
            contexts = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "mp_context"]
            if not any("spawn" in context for context in contexts):
                found.append(called)
            continue
        forks = re.search(r"(^|\.)(fork|forkpty)$|multiprocessing\.(Process|Pool)$", called)
        if forks or (called.endswith("get_context") and "spawn" not in ast.unparse(node)):
            found.append(called)
    return found


def test_layout_processes_are_spawned_and_never_forked() -> None:
    bad = "os.fork(); ProcessPoolExecutor(2); multiprocessing.Process(); get_context('fork')"
    assert len(forking_calls(bad)) == 4
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "actors").rglob("*.py")]:
        source = path.read_text(encoding="utf-8")
        if re.search("fork|Process|get_context|Pool", source):  # parsing is slow
            assert forking_calls(source) == [], path
