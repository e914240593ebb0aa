"""A picture as plain SVG: for a light and a dark page, with its text as text, in the reader's own fonts.

Knows: shapes, colours, axes. Does not know: what is drawn.

The same calls make the same bytes: no date, no random name. matplotlib is not used here: its pictures have colours that
follow no page, are many times as large, and change with its version, so that no test could hold page and run together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["Axis", "Picture", "dodged", "linear", "logarithmic", "ticks", "wide"]

_STYLE: Final = """
svg { --page:#ffffff; --text:#1f2430; --soft:#5b6474; --grid:#e3e7ee; --band:#edf2fc;
  --velox:#2457c5; --proxy:#6d7787; --llm:#c2701c; --direct:#1f2430; --user:#5a83d6; --system:#b9c9ec }
@media (prefers-color-scheme: dark) { svg { --page:#0d1117; --text:#e7eaf0; --soft:#a3adbd; --grid:#262d38;
  --band:#172036; --velox:#7ea6ff; --proxy:#8d98aa; --llm:#e09a4e; --direct:#e7eaf0; --user:#6f98ea;
  --system:#344a7a } }
text { font: 13px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--text) }
.title { font-weight: 650; font-size: 17px }
.head { font-weight: 650 }
.soft { fill: var(--soft); font-size: 12px }
.end { text-anchor: end } .middle { text-anchor: middle }
.grid { stroke: var(--grid) } .axis { stroke: var(--soft) }
.band { fill: var(--band) }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round }
.strong { stroke-width: 3 }
.dashed { stroke-dasharray: 6 4 } .dotted { stroke-dasharray: 2 4 } .long { stroke-dasharray: 16 4 }
.thin { stroke-width: 1 }
.velox { stroke: var(--velox) } .proxy { stroke: var(--proxy) } .llm { stroke: var(--llm) }
.direct { stroke: var(--direct) }
.f-velox { fill: var(--velox) } .f-proxy { fill: var(--proxy) } .f-llm { fill: var(--llm) }
.f-direct { fill: var(--direct) } .f-user { fill: var(--user) } .f-system { fill: var(--system) }
"""
# The width of a character at 13px in a bold and wide font: those of readers differ.
_CHARACTER: Final = 8.4


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to pixels. low, high: values at the pixels `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        """Return the pixel of a value; values beyond the axis stay at its ends."""
        low, high, value = (math.log10(each) if self.is_log else each for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def logarithmic(values: Sequence[float], start: float, end: float) -> Axis:
    """Return an axis with some room around the values, which are above 0."""
    return Axis(min(values) / 1.25, max(values) * 1.25, start, end, is_log=True)


def linear(values: Sequence[float], start: float, end: float) -> Axis:
    """Return an axis from 0 to a little above the values."""
    return Axis(0.0, max(values) * 1.08 or 1.0, start, end, is_log=False)


def ticks(axis: Axis) -> list[float]:
    """Return round values inside an axis: decades, with one or two steps between them; or four to eight steps."""
    if axis.is_log:
        first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
        steps = (1, 2, 5) if axis.high / axis.low <= 100 else (1, 3)
        found = [step * 10.0**exponent for exponent in range(first, last + 1) for step in steps]
        return [each for each in found if axis.low <= each <= axis.high]
    step = 10.0 ** math.floor(math.log10(axis.high / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if axis.high / (step * factor) <= 6)
    return [step * n for n in range(int(axis.high / step) + 1)]


def wide(text: str) -> float:
    """Return how many pixels a text takes, rather too many than too few."""
    return len(text) * _CHARACTER


def dodged(wanted: Sequence[float], pitch: float, low: float, high: float) -> list[float]:
    """Return positions near those wanted, at least `pitch` apart, between low and high, in the same order."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [0.0] * len(wanted)
    above = low - pitch
    for index in order:
        above = placed[index] = max(wanted[index], above + pitch)
    below = high + pitch
    for index in reversed(order):
        below = placed[index] = min(placed[index], below - pitch)
    return placed


class Picture:
    """Shapes in the order in which they are drawn. text: what a reader who sees nothing is told."""

    def __init__(self, width: int, height: int, title: str, text: str) -> None:
        self._parts: Final = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(text)}</desc>',
            f"<style>{_STYLE}</style>",
            # Opaque, as a page's colours need not follow those of the reader's system.
            f'<rect width="{width}" height="{height}" fill="var(--page)"/>',
        ]

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Write text with its baseline at y."""
        self._parts.append(f'<text{_class(kind)} x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>')

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line through points."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._parts.append(f'<polyline{_class(f"line {kind}")} points="{path}"/>')

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Fill a rectangle."""
        self._parts.append(f'<rect{_class(kind)} x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"/>')

    def dot(self, x: float, y: float, radius: float, kind: str) -> None:
        """Fill a circle."""
        self._parts.append(f'<circle{_class(kind)} cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"/>')

    def drawn(self) -> str:
        """Return the file's text."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _n(value: float) -> str:
    """Write a pixel to a tenth: nobody sees less, and every digit is a byte."""
    return f"{value:.1f}".removesuffix(".0")
