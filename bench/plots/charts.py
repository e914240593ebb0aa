"""The kinds of picture: dots with spread, distributions with flags, lines with names at their ends.

Knows: where things stand. Does not know: which figures are drawn (pictures.py), shapes and colours (svg.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.plots.figures import number
from bench.plots.svg import Axis, Picture, dodged, linear, logarithmic, ticks, wide
from bench.rounds import Spread

__all__ = ["Curve", "Dot", "Panel", "distributions", "dots", "lines"]

_WIDTH: Final = 880
# A word in the name of one of Velox's ways -> how its line is drawn.
_DASHES: Final = (("TLS", "dotted"), ("HTTP/2", "dashed"), ("workers", "long"))
_GROUPS: Final = (("velox", "Velox"), ("direct", "direct"), ("proxy", "proxies"), ("llm", "LLM gateways"))


@dataclass(frozen=True, slots=True)
class Dot:
    """One row of a panel. user: the part of it that is user time, nan if unknown. note: what stands at its end."""

    name: str
    kind: str
    value: Spread
    user: float = math.nan
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows below a heading, on one axis. head: what the notes are."""

    title: str
    rows: Sequence[Dot]
    head: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line with its name. points: (x, y)."""

    name: str
    kind: str
    points: Sequence[tuple[float, float]]

    @property
    def look(self) -> str:
        """Return its classes: what is compared with stands out, the rest steps back."""
        strong = " strong" if self.kind == "velox" else ""
        if self.kind == "velox":
            dash = next((f" {look}" for word, look in _DASHES if word in self.name), "")
        else:
            dash = " dashed" if self.kind == "direct" else ""
        return f"{self.kind}{strong}{dash}"


# The last class of a look -> the way to the upstream that it stands for.
_WAYS: Final = {"dashed": "HTTP/2 up", "dotted": "over TLS", "long": "more workers"}

_ROW: Final = 25
_DOTS_LEFT, _DOTS_RIGHT = 236, 585
_VALUE_X, _NOTE_X, _SHARE_X, _SHARE_WIDTH = 600, 702, 746, 114


def dots(title: str, text: str, panels: Sequence[Panel]) -> str:
    """Draw a dot a subject on a log axis, whiskers from least to greatest, and its parts as shares of one bar.

    A stacked bar on a log axis would lie about its parts, and on a linear one the cheap ones would not be seen.
    """
    height = 52 + sum(len(panel.rows) * _ROW + 84 for panel in panels)
    picture = Picture(_WIDTH, height, title, text)
    picture.text(20, 30, title, "title")
    top = 52.0
    for panel in panels:
        top = _panel(picture, panel, top)
    return picture.drawn()


def _panel(picture: Picture, panel: Panel, top: float) -> float:
    """Draw a panel; return where the next one begins."""
    first, last = top + 44, top + 44 + len(panel.rows) * _ROW
    picture.text(20, top + 14, panel.title, "head")
    picture.text(_NOTE_X, top + 34, panel.head, "soft middle")
    # A value that has no place on a log axis stands at its left end.
    values = [each for row in panel.rows for each in (row.value.least, row.value.greatest) if each > 0]
    axis = logarithmic(values, _DOTS_LEFT, _DOTS_RIGHT)
    for index, row in enumerate(panel.rows):
        if row.kind == "velox":
            picture.box(12, first + index * _ROW + 1, _WIDTH - 24, _ROW - 2, "band")
    for value in ticks(axis):
        x = axis.at(value)
        picture.line([(x, first), (x, last)], "grid thin")
        picture.text(x, last + 17, number_short(value), "soft middle")
    if any(not math.isnan(row.user) for row in panel.rows):
        # Two names in the colours of their parts.
        picture.box(_SHARE_X, top + 25, 10, 10, "f-user")
        picture.text(_SHARE_X + 15, top + 34, "user", "soft")
        picture.box(_SHARE_X + 64, top + 25, 10, 10, "f-system")
        picture.text(_SHARE_X + 79, top + 34, "system", "soft")
    for index, row in enumerate(panel.rows):
        _dot_row(picture, row, axis, first + index * _ROW)
    return last + 40


def _dot_row(picture: Picture, row: Dot, axis: Axis, y: float) -> None:
    middle, base = y + _ROW / 2, y + _ROW / 2 + 4.5
    strong = row.kind == "velox"
    left, right, x = (axis.at(max(each, axis.low)) for each in (row.value.least, row.value.greatest, row.value.median))
    picture.text(_DOTS_LEFT - 12, base, row.name, "end head" if strong else "end")
    picture.line([(left, middle), (right, middle)], row.kind)
    for end in (left, right):
        picture.line([(end, middle - 4), (end, middle + 4)], row.kind)
    picture.dot(x, middle, 5.5 if strong else 4.5, f"f-{row.kind}")
    picture.text(_VALUE_X, base, f"{number(row.value.median)} µs", "head" if strong else "")
    picture.text(_NOTE_X, base, row.note, "head middle" if strong else "middle")
    if not math.isnan(row.user):
        user = row.user * _SHARE_WIDTH
        picture.box(_SHARE_X, middle - 6, user, 12, "f-user")
        picture.box(_SHARE_X + user, middle - 6, _SHARE_WIDTH - user, 12, "f-system")


_FLAG: Final = 18
_SHARES: Final = ((0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"))


def distributions(title: str, subtitle: str, text: str, curves: Sequence[Curve]) -> str:
    """Draw how great a share of requests took at most so long: log ms, and a nine more with each step upwards.

    curves: (ms, share). Each has a flag with its name above its end; no flag's pole crosses another flag.
    """
    left, right, plot = 62.0, _WIDTH - 150.0, 330.0
    values = [ms for curve in curves for ms, _ in curve.points]
    axis = logarithmic(values, left, right)
    top_share = max(share for curve in curves for _, share in curve.points)
    rows = _flag_rows([(axis.at(curve.points[-1][0]), wide(curve.name) + 14) for curve in curves])
    top = 76.0 + (max(rows) + 1) * _FLAG
    bottom = top + plot
    picture = Picture(_WIDTH, int(bottom) + 84, title, text)
    picture.text(20, 30, title, "title")
    picture.text(20, 52, subtitle, "soft")
    upwards = Axis(0.0, _nines(top_share), bottom, top, is_log=False)
    for value in ticks(axis):
        x = axis.at(value)
        picture.line([(x, top), (x, bottom)], "grid thin")
        picture.text(x, bottom + 18, number_short(value), "soft middle")
    for share, words in _SHARES:
        if share <= top_share + 1e-9:
            y = upwards.at(_nines(share))
            picture.line([(left, y), (right, y)], "grid thin")
            picture.text(left - 8, y + 4, words, "soft end")
    picture.text(left - 8, bottom + 4, "0 %", "soft end")
    picture.line([(left, bottom), (right, bottom)], "axis thin")
    picture.text(
        (left + right) / 2, bottom + 38, "ms from when a request was due to its whole answer (log)", "soft middle"
    )
    # What stands out is drawn last, over the others.
    for curve, row in sorted(zip(curves, rows, strict=True), key=lambda each: _GROUP_ORDER[each[0].kind]):
        points = [(axis.at(ms), upwards.at(_nines(share))) for ms, share in curve.points]
        picture.line(_few(points), curve.look)
        x, y = points[-1]
        flag = top - 8 - row * _FLAG
        picture.line([(x, y), (x, flag - 9)], f"{curve.kind} thin")
        picture.text(x + 4, flag, curve.name, "head" if curve.kind == "velox" else "")
    _legend(picture, curves, left, bottom + 64)
    return picture.drawn()


_GROUP_ORDER: Final = {"llm": 0, "proxy": 1, "direct": 2, "velox": 3}


def _nines(share: float) -> float:
    return -math.log10(max(1e-4, 1 - share))


def _flag_rows(flags: Sequence[tuple[float, float]]) -> list[int]:
    """Return the row of each flag of (pole, width) above the plot, the lowest free one from right to left.

    A flag flies to the right of its pole, above every flag whose pole is below it: so no pole crosses a flag.
    """
    rows = [0] * len(flags)
    done: list[int] = []
    for index in sorted(range(len(flags)), key=lambda index: -flags[index][0]):
        pole, width = flags[index]
        rows[index] = max((rows[other] + 1 for other in done if flags[other][0] < pole + width), default=0)
        done.append(index)
    return rows


def _few(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points without those that lie within a pixel of the one before."""
    kept = [points[0]]
    for point in points[1:]:
        if math.dist(point, kept[-1]) >= 1.0 or point is points[-1]:
            kept.append(point)
    return kept


def lines(
    title: str,
    text: str,
    curves: Sequence[Curve],
    words: tuple[str, str],
    *,
    is_log: bool,
    make: Callable[[float], str] | None = None,
) -> str:
    """Draw lines with their names, and what they come to, at their right ends.

    words: of both axes. make: writes the value of an end.
    """
    labels = [f"{curve.name}: {(make or number)(curve.points[-1][1])}" for curve in curves]
    left, top, bottom = 76.0, 84.0, 84.0 + max(310.0, 17.0 * len(curves))
    right = _WIDTH - 33.0 - max(map(wide, labels))
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    across = Axis(min(xs), max(xs), left, right, is_log=False)
    upwards = logarithmic(ys, bottom, top) if is_log else linear(ys, bottom, top)
    picture = Picture(_WIDTH, int(bottom) + 84, title, text)
    picture.text(20, 30, title, "title")
    picture.text(20, 58, words[1], "soft")
    for value in ticks(upwards):
        y = upwards.at(value)
        picture.line([(left, y), (right, y)], "grid thin")
        picture.text(left - 8, y + 4, number_short(value), "soft end")
    for value in sorted(set(xs)):
        picture.text(across.at(value), bottom + 18, f"{value:,.0f}", "soft middle")
    picture.line([(left, bottom), (right, bottom)], "axis thin")
    picture.text((left + right) / 2, bottom + 38, words[0], "soft middle")
    ends = [(across.at(curve.points[-1][0]), upwards.at(curve.points[-1][1])) for curve in curves]
    names = dodged([y for _, y in ends], 17, top, bottom)
    placed = sorted(zip(curves, ends, names, labels, strict=True), key=lambda each: _GROUP_ORDER[each[0].kind])
    for curve, (x, y), name_y, label in placed:
        points = [(across.at(each[0]), upwards.at(each[1])) for each in curve.points]
        picture.line(points, curve.look)
        for point in points:
            picture.dot(*point, 4 if curve.kind == "velox" else 3, f"f-{curve.kind}")
        # Where a name had to move, a thin line leads to it.
        picture.line([(x + 5, y), (right + 14, name_y), (right + 20, name_y)], f"{curve.kind} thin")
        picture.text(right + 25, name_y + 4.5, label, "head" if curve.kind == "velox" else "")
    _legend(picture, curves, left, bottom + 64)
    return picture.drawn()


def number_short(value: float) -> str:
    """Write the value of a tick."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _legend(picture: Picture, curves: Sequence[Curve], x: float, y: float) -> None:
    """Name the colours of the groups, in a row, and the dashes of Velox's ways."""
    for kind, words in _GROUPS:
        looks = dict.fromkeys(curve.look for curve in curves if curve.kind == kind)
        ways = {look: _WAYS[look.split()[-1]] for look in looks if look.split()[-1] in _WAYS and kind == "velox"}
        for look, way in ({look: ways.get(look, words) for look in looks}).items():
            picture.line([(x, y - 4), (x + 26, y - 4)], look)
            picture.text(x + 34, y, way, "soft")
            x += 34 + 0.82 * wide(way) + 16  # the small letters
