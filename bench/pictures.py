"""The pictures of the documentation's pages: the same file for the same figures.

Knows: how matplotlib is set up. Does not know: what is drawn. matplotlib is loaded by the first picture only: a run
that writes nothing needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DOCS", "draw_shares", "new", "write"]

DOCS: Final = Path(__file__).parent.parent / "docs"
_POINTS: Final = 150


def new(columns: int, *, rows: int = 1, width: float = 12.0, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, row by row. width, height: in inches."""
    import matplotlib

    matplotlib.use("svg")
    # The same picture for the same figures, with its text as text.
    matplotlib.rcParams.update({"svg.hashsalt": "velox", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False)
    return figure, [each for row in axes for each in row]


def draw_shares(axes: Axes, values: Sequence[float], label: str, *, dashed: bool = False) -> None:
    """Draw which part of the values is at most so great; a part that never came is what is missing to 1.

    values: inf for those.
    """
    ordered = sorted(values)
    n = len(ordered)
    points = [(value, (index + 1) / n) for index, value in enumerate(ordered) if value != float("inf")]
    # All of the last ones: that is where lines differ.
    step = max(1, n // _POINTS)
    kept = points[:-_POINTS:step] + points[-_POINTS:]
    axes.plot(
        [value for value, _ in kept],
        [share for _, share in kept],
        label=label,
        drawstyle="steps-post",
        linestyle="dashed" if dashed else "solid",
    )


def write(figure: Figure, name: str) -> None:
    """Write docs/NAME.svg."""
    figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})
