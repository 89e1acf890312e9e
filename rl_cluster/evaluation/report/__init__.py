"""The report of a run or an evaluation: `report.html`, `report.md` and `report.json` from one `ReportContent`."""

from rl_cluster.evaluation.report.content import ReportContent, Views, first_views, question_views
from rl_cluster.evaluation.report.writer import write_report

__all__ = ["ReportContent", "Views", "first_views", "question_views", "write_report"]
