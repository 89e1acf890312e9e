"""The report of a run or an evaluation: `report.html`, `report.md` and `report.json` from one `ReportContent`."""

from rl_cluster.evaluation.report.content import ReportContent, question_views
from rl_cluster.evaluation.report.writer import write_report

__all__ = ["ReportContent", "question_views", "write_report"]
