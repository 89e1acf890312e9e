"""Writes a report's files, each whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rl_cluster.evaluation.report.content import ReportContent
from rl_cluster.evaluation.report.markdown import report_markdown
from rl_cluster.evaluation.report.page import report_page

FILES = ("report.json", "report.md", "report.html")


def write_report(folder: Path, content: ReportContent, numbers: dict[str, Any]) -> list[Path]:
    """`report.json` holds `numbers`; the other two show `content`. Returns the paths in the order of FILES."""
    folder.mkdir(parents=True, exist_ok=True)
    made = (lambda: json.dumps(numbers, indent=1), lambda: report_markdown(content), lambda: report_page(content))
    paths = []
    for name, make in zip(FILES, made, strict=True):  # the numbers are safe before anything is drawn
        text = make()
        path = folder / name
        partial = path.with_name(f".{name}.{os.getpid()}.partial")
        # A lone half of a character may come from a model; it must not cost the report.
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(path)
        paths.append(path)
    return paths
