"""A small SVG canvas and a linear scale: what the plots of a report are drawn with.

Drawn for a width of 440, so that a telephone shows letters of a readable size; every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 440
# Okabe and Ito's palette (2008), which colour-blind readers can tell apart, without its yellow, too light on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT, GRID = "#1f2933", "#5b6770", "#dfe4e8"


@dataclass
class Canvas:
    """Collects shapes; `svg` closes them into one image with a name for those who do not see it."""

    height: float
    title: str
    width: float = WIDTH
    parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        size: int = 12,
        colour: str = INK,
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{weight}>{escape(text)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = INK, width: float = 1.0, dash: str = ""
    ) -> None:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'
        )

    def rect(self, x: float, y: float, width: float, height: float, colour: str, hint: str = "") -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" fill="{colour}">{_hint(hint)}</rect>'
        )

    def circle(self, x: float, y: float, radius: float, colour: str, hint: str = "") -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}">{_hint(hint)}</circle>')

    def polyline(self, points: list[tuple[float, float]], colour: str, width: float = 2.0) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>')

    def band(self, upper: list[tuple[float, float]], lower: list[tuple[float, float]], colour: str) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
        self.parts.append(f'<polygon points="{joined}" fill="{colour}" fill-opacity="0.18"/>')

    def svg(self) -> str:
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.title)}" '
            f'xmlns="http://www.w3.org/2000/svg">{"".join(self.parts)}</svg>'
        )


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: list[float], start: float, end: float, zero: bool = False) -> Scale:
        """Holds all values with a little room; `zero` holds 0 too."""
        kept = [value for value in values if math.isfinite(value)] + ([0.0] if zero else [])
        low, high = min(kept, default=0.0), max(kept, default=1.0)
        room = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
        ends_at_zero = zero and high == 0 and low < 0
        return cls(low if zero and low == 0 else low - room, high if ends_at_zero else high + room, start, end)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values inside the scale."""
        raw = (self.high - self.low) / max(about, 1)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw - 1e-12)
        first = math.ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A tick's label."""
    if value and abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.6g}" if abs(value) > 1e-12 else "0"


def shortened(text: str, letters: int) -> str:
    """A name that fits beside a plot, cut in its middle: names that are made alike differ at their ends."""
    end = (letters - 1) // 2
    return text if len(text) <= letters else f"{text[: letters - 1 - end]}…{text[len(text) - end :]}"


def told_apart(names: Sequence[str], letters: int) -> list[str]:
    """The names as `shortened` has them; those that would read alike end with their number."""
    cut = [shortened(name, letters) for name in names]
    for place, name in enumerate(names):
        if any(cut[other] == cut[place] for other in range(len(names)) if names[other] != name):
            number = f" {place + 1}"
            cut[place] = shortened(name, letters - len(number)) + number
    return cut


def _hint(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
