"""`report.html`: one file without any address in it, readable offline and on a telephone.

Everything that comes from models, documents or settings is data: Jinja escapes it, and the episodes travel as JSON that the
page's script shows as text. A policy in the page forbids it to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from rl_cluster.evaluation.comparison import rows
from rl_cluster.evaluation.report import plots
from rl_cluster.evaluation.report.content import FOOTNOTE, ReportContent
from rl_cluster.evaluation.report.markdown import latency, mean, p_value, with_interval


def report_page(content: ReportContent) -> str:
    """The HTML of a report."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    parts = files("rl_cluster.evaluation.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string((parts / "page.html.j2").read_text(encoding="utf-8"))
    charts = [(title, note, Markup(svg)) for title, note, svg in _charts(content) if svg]
    return template.render(
        content=content,
        systems=content.comparison["systems"],
        charts=charts,
        data=Markup(_json_in_html({"questions": content.questions})),
        style=Markup((parts / "page.css").read_text(encoding="utf-8")),
        script=Markup((parts / "page.js").read_text(encoding="utf-8")),
        rows=rows,
        footnote=FOOTNOTE,
        passes=_passes,
        latency=latency,
        mean=mean,
        p_value=p_value,
        with_interval=with_interval,
    )


def _charts(content: ReportContent) -> list[tuple[str, str, str]]:
    systems = content.comparison["systems"]
    return [
        (
            "Learning",
            f"{_band(content)} Points: held-out questions with 95% intervals.",
            plots.learning_curve(content.history, content.validations, content.external_metric),
        ),
        (
            "Paired differences",
            "Same questions, 95% intervals; colour where the interval leaves out 0.",
            plots.forest(content.comparison["pairs"]),
        ),
        ("Failures by reason", "Share of all episodes.", plots.failure_reasons(systems)),
        ("Effort", "Means with 95% intervals.", plots.effort(systems)),
        ("Quality against cost", "Bars: 95% intervals of nDCG@10.", plots.quality_against_cost(systems)),
        ("Drift", "Against the undisturbed run, same questions.", plots.drifts(content.drifts)),
    ]


def _band(content: ReportContent) -> str:
    if plots.reward_half_widths(content.history) is None:
        return "No band: the steps do not say how far their groups lie apart."
    return "Band: 95% intervals of the mean reward over groups, by Student's t."


def _passes(found: Mapping[str, Any]) -> str:
    measures = found["overall"]["measures"]
    shown = []
    for key, value in measures.items():
        for prefix, name in (("pass_at_", "pass@"), ("pass_power_", "pass^")):
            if key.startswith(prefix):
                shown.append(f"{name}{key.removeprefix(prefix)} {value['mean']:.3f}")
    return ", ".join(shown)


def _json_in_html(value: Any) -> str:
    """JSON that no text inside can end: `</script>` and `<!--` need the sign that is escaped here."""
    text = json.dumps(value, ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
