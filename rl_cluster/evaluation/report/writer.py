"""Writes a report's files, each whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_cluster.evaluation.files import write_whole
from rl_cluster.evaluation.report.content import ReportContent
from rl_cluster.evaluation.report.markdown import report_markdown
from rl_cluster.evaluation.report.page import report_page

FILES = ("report.json", "report.md", "report.html")


def write_report(folder: Path, content: ReportContent, numbers: dict[str, Any]) -> list[Path]:
    """`report.json` holds `numbers`; the other two show `content`. Returns the paths in the order of FILES."""
    made = (lambda: json.dumps(numbers, indent=1), lambda: report_markdown(content), lambda: report_page(content))
    paths = []
    for name, make in zip(FILES, made, strict=True):  # the numbers are safe before anything is drawn
        path = folder / name
        write_whole(path, make())
        paths.append(path)
    return paths
