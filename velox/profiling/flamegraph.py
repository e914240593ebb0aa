"""A profile as a picture: a flame graph in one self-contained SVG, and the folded text other tools draw from.

Knows: how stacks become a tree, the tree boxes, and boxes SVG. Does not know: where a profile came from, or
HTTP.

The root is on top and callees hang below (an "icicle"), so the picture starts where the page does. A box is
as wide as the CPU time spent in it and all it called; neighbours are sorted by name, not by time. The file
is readable without its script (an image viewer, a print); the script adds zoom, search and the window's
full width.
"""

from __future__ import annotations

import colorsys
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from velox.profiling.samples import Frame, Profile, is_stdlib

__all__ = ["SCRIPT", "folded", "render"]

# Constants, so that a server can name the script's digest in its Content-Security-Policy. The script reads the ids,
# classes and data-* attributes that are written here.
STYLE: Final = Path(__file__).with_suffix(".css").read_text("utf-8")
SCRIPT: Final = Path(__file__).with_suffix(".js").read_text("utf-8")

WIDTH: Final = 1200  # px; the script changes it to the window's
PAD: Final = 16
HEADER: Final = 116  # px above the first row
ROW: Final = 20  # px of a row, one of which is the gap to the next
CHAR: Final = 7.25  # px of a character at 12 px, monospace
# A box narrower than this part of the whole is left out: zooming in 400-fold would not make it worth a look.
MIN_SHARE: Final = 1 / 4000

_WORKER = Frame("all workers", "", 0, 0)
# XML 1.0 has no way to write these, not even escaped.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

_Key: TypeAlias = tuple[str, str, int]


@dataclass(slots=True)
class _Node:
    """A function at one place of the tree; `lines`: CPU time by the line that was running in it."""

    frame: Frame
    cpu_ns: int = 0
    self_ns: int = 0
    lines: dict[int, int] = field(default_factory=dict)
    children: dict[_Key, _Node] = field(default_factory=dict)

    def child(self, frame: Frame) -> _Node:
        key = (frame.function, frame.file, frame.def_line)
        node = self.children.get(key)
        if node is None:
            node = self.children[key] = _Node(frame)
        return node

    def add(self, line: int, cpu_ns: int) -> None:
        self.cpu_ns += cpu_ns
        self.lines[line] = self.lines.get(line, 0) + cpu_ns


class _Box(NamedTuple):
    node: _Node
    depth: int
    start_ns: int


def folded(profile: Profile) -> str:
    """Return a line per stack, `frame;frame;frame microseconds`, as flamegraph.pl and speedscope read it."""
    lines = []
    for worker, samples in profile.workers.items():
        for stack, cost in samples.items():
            names = (frame.dotted.replace(";", ",").replace(" ", "_") for frame in stack)
            lines.append(f"{worker.replace(' ', '_')};{';'.join(names)} {round(cost.cpu_ns / 1000)}\n")
    return "".join(sorted(lines))


def render(profile: Profile) -> str:
    """Return the SVG document."""
    root = _tree(profile)
    boxes = list(_boxes(root))
    height = HEADER + ROW * (max(box.depth for box in boxes) + 1) + PAD
    body = "\n".join(_svg_box(box, root.cpu_ns) for box in boxes) if root.cpu_ns else _svg_idle(profile)
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" \
data-pad="{PAD}" data-char="{CHAR}" data-total="{root.cpu_ns}">
<title>CPU profile of Velox</title>
<style>{STYLE}</style>
<rect id="ground" width="100%" height="100%"/>
{_svg_header(profile)}
<g id="frames">
{body}
</g>
<script><![CDATA[{SCRIPT}]]></script>
</svg>
"""


def _tree(profile: Profile) -> _Node:
    root = _Node(_WORKER)
    for worker, samples in profile.workers.items():
        for stack, cost in samples.items():
            node = root
            node.add(0, cost.cpu_ns)
            for frame in (Frame(worker, "", 0, 0), *stack):
                node = node.child(frame)
                node.add(frame.line, cost.cpu_ns)
            node.self_ns += cost.cpu_ns
    return root


def _boxes(root: _Node) -> Iterator[_Box]:
    """Yield the boxes parents first, from left to right; the script relies on that order."""
    least_ns = root.cpu_ns * MIN_SHARE
    waiting = [_Box(root, 0, 0)]
    while waiting:
        box = waiting.pop()
        yield box
        start_ns = box.start_ns
        row = []
        for _, node in sorted(box.node.children.items()):
            if node.cpu_ns >= least_ns:
                row.append(_Box(node, box.depth + 1, start_ns))
            start_ns += node.cpu_ns
        waiting.extend(reversed(row))


def _svg_box(box: _Box, total_ns: int) -> str:
    node, frame = box.node, box.node.frame
    px_per_ns = (WIDTH - 2 * PAD) / total_ns
    x, width = PAD + box.start_ns * px_per_ns, node.cpu_ns * px_per_ns
    y = HEADER + ROW * box.depth
    short, long = _clean(frame.function), _clean(frame.dotted)
    return (
        f'<g class="f" data-short={quoteattr(short)} data-long={quoteattr(long)}'
        f' data-x="{box.start_ns}" data-w="{node.cpu_ns}" data-d="{box.depth}">'
        f"<title>{escape(_tooltip(node, total_ns))}</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{_gapped(width):.2f}" height="{ROW - 1}" rx="2"'
        f' fill="{_colour(frame)}"/>'
        f'<text x="{x + 4:.2f}" y="{y + 13.5}">{escape(_label(short, long, width))}</text></g>'
    )


def _label(short: str, long: str, width: float) -> str:
    """Return the name with its module, or what fits of the name. The script has the same rule."""
    room = int((width - 8) / CHAR)
    if len(long) <= room:
        return long
    return "" if room < 3 else short if len(short) <= room else short[: room - 1] + "…"


def _gapped(width: float) -> float:
    """Leave a gap to the next box where there is room for one. The script has the same rule."""
    return width - 1 if width > 4 else max(width * 0.75, 0.3)


def _tooltip(node: _Node, total_ns: int) -> str:
    """Name, place and cost, one a line; the script shows them in one line as well."""
    share = f"{_seconds(node.cpu_ns)} CPU, {100 * node.cpu_ns / total_ns:.1f} %"
    if node.self_ns:
        share += f" ({_seconds(node.self_ns)} in itself)"
    if not node.frame.file:
        return _clean(f"{node.frame.function}\n{share}")
    hottest = max(node.lines, key=lambda line: node.lines[line])
    most = f", {100 * node.lines[hottest] / node.cpu_ns:.0f} % of it at line {hottest}"
    return _clean(f"{node.frame.dotted}\n{node.frame.file}:{node.frame.def_line}\n{share}{most}")


def _svg_header(profile: Profile) -> str:
    seconds = profile.duration_ns / 1e9
    busy = profile.cpu_ns / profile.duration_ns if profile.duration_ns else 0.0
    n_workers = len(profile.workers)
    facts = [
        f"{n_workers} worker{'' if n_workers == 1 else 's'} for {seconds:g} s",
        f"{_seconds(profile.cpu_ns)} CPU ({busy:.0%} of one core)",
        f"{profile.n_samples:,} samples, at most {profile.hz} a second per worker",
        *filter(None, [profile.unseen]),
    ]
    warning = f"No answer from {', '.join(profile.missing)}" if profile.missing else ""
    parts = [
        f'<text id="heading" x="{PAD}" y="34">CPU profile'
        f'<tspan class="warning" dx="18">{escape(warning)}</tspan></text>',
        f'<text class="fact" x="{PAD}" y="56">{escape("  ·  ".join(facts))}</text>',
    ]
    if not profile.cpu_ns:
        return "\n".join(parts)
    x = PAD
    for name, frame in _LEGEND:
        parts.append(f'<rect x="{x}" y="69" width="11" height="11" rx="2" fill="{_colour(frame)}"/>')
        parts.append(f'<text class="fact" x="{x + 17}" y="79">{name}</text>')
        x += 17 + round(6.4 * len(name)) + 22
    parts.append(f'<text id="detail" x="{PAD}" y="104">Point at a box to read it, click to zoom.</text>')
    parts.append(_CONTROLS)
    return "\n".join(parts)


_LEGEND: Final = (
    ("Velox", Frame("", "velox/", 0, 0)),
    ("Python's library", Frame("", "asyncio/", 0, 0)),
    ("other packages", Frame("", "-/", 0, 0)),
)

# Shown by the script only: without it they would do nothing.
_CONTROLS: Final = """<g id="controls">
<text id="reset" y="38">Reset zoom</text>
<text id="matched" y="56"></text>
<foreignObject id="box" y="18" width="250" height="30">\
<input xmlns="http://www.w3.org/1999/xhtml" id="query" type="search" \
placeholder="Search: a name or a pattern ( / )" spellcheck="false" autocomplete="off"/></foreignObject>
</g>"""


def _svg_idle(profile: Profile) -> str:
    text = "The workers used too little CPU time for a sample." if profile.workers else "No worker answered."
    return f'<text class="idle" x="{PAD}" y="96">{text}</text>'


def _colour(frame: Frame) -> str:
    """Say by hue whose code it is; the shade is a function's own, and the same in every picture."""
    spread = zlib.crc32(frame.function.encode(errors="replace")) % 1000 / 1000 if frame.function else 0.5
    if not frame.file:
        hue, lightness, saturation = 215.0, 0.86, 0.16
    elif frame.file.startswith("velox/"):
        hue, lightness, saturation = 18 + 26 * spread, 0.66 + 0.05 * spread, 0.92
    elif is_stdlib(frame.file):
        hue, lightness, saturation = 206 + 16 * spread, 0.76 + 0.06 * spread, 0.62
    else:
        hue, lightness, saturation = 150 + 20 * spread, 0.70 + 0.06 * spread, 0.42
    red, green, blue = colorsys.hls_to_rgb(hue / 360, lightness, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.2f} s" if ns >= 1e9 else f"{ns / 1e6:.3g} ms" if ns < 1e8 else f"{ns / 1e6:.0f} ms"


def _clean(text: str) -> str:
    return _NOT_XML.sub("?", text)
