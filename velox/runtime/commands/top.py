"""What `velox top` shows: a screen of a running gateway, drawn once a second.

Knows: which figures are shown, and how. Does not know: how they are asked for (admin/call.py), or the terminal
(terminal.py).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TextIO

from velox.admin.call import ASKS, AdminCaller, AdminCallError
from velox.runtime.commands.figures import Reading, grown_by, parse_figures, quantile_between
from velox.runtime.commands.terminal import Terminal
from velox.settings.loading import AdminPlace
from velox.types import Address

__all__ = ["History", "Look", "screen", "show_top"]

_PAUSE_S: Final = 1.0
_TIMEOUT_S: Final = 10.0

# Quantiles are of the last seconds, failures of the last minutes.
_WINDOW_S: Final = 15.0
_RECENT_S: Final = 300.0
_FIRST_TOKEN: Final = "gen_ai_server_time_to_first_token_seconds"  # noqa: S105
_FIRST_BYTE: Final = "velox_upstream_time_to_first_byte_seconds"
_MOST_REASONS: Final = 8
_MOST_NAME: Final = 32
_NONE: Final = "-"
# For what is printed once: neither a line nor the page ends early.
_WHOLE: Final = 10_000


class Look(NamedTuple):
    """How a screen is drawn. colours: with the terminal's bold, red and green."""

    width: int
    height: int
    colours: bool


class History:
    """The last readings, for five minutes."""

    def __init__(self) -> None:
        self._readings: Final[deque[Reading]] = deque()

    def __repr__(self) -> str:
        return f"<History {len(self._readings)}>"

    def add(self, reading: Reading) -> None:
        """Take one, the newest."""
        self._readings.append(reading)
        while reading.at_s - self._readings[0].at_s > _RECENT_S:
            self._readings.popleft()

    @property
    def now(self) -> Reading:
        """The newest."""
        return self._readings[-1]

    @property
    def last(self) -> Reading:
        """The one before it; where there is none, the newest."""
        return self._readings[-2] if len(self._readings) > 1 else self._readings[-1]

    def before(self, window_s: float) -> Reading:
        """Return the oldest one within so many seconds."""
        since_s = self.now.at_s - window_s
        return next(each for each in self._readings if each.at_s >= since_s)


def show_top(place: AdminPlace, address: Address, out: TextIO, *, is_once: bool) -> None:
    """Draw screens on a terminal until somebody leaves; is_once: write one, of two readings. Raises AdminCallError."""
    history = History()

    def look() -> None:
        with contextlib.closing(AdminCaller(address, place.token, place.cert, _TIMEOUT_S)) as caller:
            status, body = caller.ask("GET", "/metrics")
        if status != 200:
            raise AdminCallError(ASKS if status == 401 else f"the gateway at {address} says {status}")
        history.add(parse_figures(body.decode("utf-8", "replace"), time.monotonic()))

    look()
    if is_once:
        time.sleep(_PAUSE_S)
        look()
        out.writelines(f"{line}\n" for line in screen(history, Look(_WHOLE, _WHOLE, colours=False)))
        return
    terminal = Terminal(out)
    with terminal.open():
        while True:
            width, height = terminal.size
            terminal.draw(screen(history, Look(width, height, colours=True)))
            if terminal.wait(_PAUSE_S):
                return
            look()


def screen(history: History, look: Look, wall_s: Callable[[], float] = time.time) -> list[str]:
    """Return the lines of a screen, none longer and no more than there is room for."""
    paint = _Paint(look.colours)
    clock = time.strftime("%H:%M:%S", time.localtime(wall_s()))
    lines = [*_head(history, paint, clock), "", *_upstreams(history, paint), "", *_failures(history, paint), ""]
    lines += _workers(history, paint)
    return [_clipped(line, look.width) for line in lines[: look.height]]


class _Paint:
    """Colours of a terminal, or none."""

    def __init__(self, colours: bool) -> None:
        self._colours: Final = colours

    def bold(self, text: str) -> str:
        return self._in("1", text)

    def bad(self, text: str) -> str:
        return self._in("31", text)

    def good(self, text: str) -> str:
        return self._in("32", text)

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text


def _head(history: History, paint: _Paint, clock: str) -> list[str]:
    now, last, earlier = history.now, history.last, history.before(_WINDOW_S)
    took_s = now.at_s - last.at_s
    ended = grown_by(now, last, "velox_requests_total", "reason")
    n_ended = sum(ended.values())
    n_failed = n_ended - ended.get("ok", 0.0)
    tokens = grown_by(now, last, "velox_upstream_tokens_total", "kind")
    times = [quantile_between(now, earlier, _FIRST_TOKEN, share) for share in (0.5, 0.95, 0.99)]
    build = next((each.labels for each in now.samples.get("velox_build_info", ())), {})
    version = " ".join(each for each in (build.get("version", ""), build.get("build", "")) if each)
    failed = f"{_rate(n_failed, took_s)} failed"
    return [
        f"{paint.bold('velox')} {version}   up {_span(now.total('velox_uptime_seconds'))}   {clock}",
        f"requests     {_rate(n_ended, took_s)}   {paint.bad(failed) if n_failed else failed}   "
        f"in flight {_number(now.total('velox_inflight_requests'))}   "
        f"queued {_number(now.total('velox_queue_depth'))}   "
        f"clients {_number(now.total('velox_client_connections'))}",
        f"first token  50 % {_span(times[0])}   95 % {_span(times[1])}   99 % {_span(times[2])}",
        f"tokens       in {_rate(tokens.get('input', 0.0), took_s)}   "
        f"out {_rate(tokens.get('output', 0.0), took_s)}   "
        f"cost since the start ${now.total('velox_upstream_cost_usd_total'):,.4f}",
    ]


def _rate(n: float, took_s: float) -> str:
    """Return how many that is a second; took_s: 0 before there is a second reading, which tells nothing yet."""
    return f"{_number(n / took_s)}/s" if took_s > 0 else _NONE


def _upstreams(history: History, paint: _Paint) -> list[str]:
    now, last, earlier = history.now, history.last, history.before(_RECENT_S)
    took_s = now.at_s - last.at_s
    rows: list[Sequence[str]] = []
    for name in now.by("velox_upstream_state", "upstream"):
        where = {"upstream": name}
        states = now.by("velox_upstream_state", "state", where)
        wrong = [state for state, n in states.items() if n and state != "in"]
        attempts = grown_by(now, last, "velox_upstream_requests_total", "outcome", where)
        recent = grown_by(now, earlier, "velox_upstream_requests_total", "outcome", where)
        n_recent = sum(recent.values())
        share = f"{100 * (n_recent - recent.get('ok', 0.0)) / n_recent:.1f} %" if n_recent else _NONE
        times = [quantile_between(now, earlier, _FIRST_BYTE, each, where) for each in (0.5, 0.95)]
        rows.append(
            (
                _shown(name),
                paint.bad(", ".join(wrong)) if wrong else paint.good("in use"),
                _number(now.total("velox_upstream_inflight_requests", where)),
                _number(sum(attempts.values()) / took_s) if took_s > 0 else _NONE,
                share,
                _span(times[0]),
                _span(times[1]),
                _number(now.total("velox_upstream_keys_unused", where)),
            )
        )
    names = ("UPSTREAM", "STATE", "IN FLIGHT", "ATTEMPTS/S", "FAILED", "FIRST BYTE 50 %", "95 %", "KEYS NOT USED")
    return _table(names, rows, paint)


def _failures(history: History, paint: _Paint) -> list[str]:
    found = grown_by(history.now, history.before(_RECENT_S), "velox_requests_total", "reason")
    total = history.now.by("velox_requests_total", "reason")
    reasons = sorted((name for name in total if name != "ok" and total[name]), key=lambda name: -found.get(name, 0.0))
    rows = [(name, _number(found.get(name, 0.0)), _number(total[name])) for name in reasons[:_MOST_REASONS]]
    return _table(("FAILED REQUESTS", "LAST 5 MIN", "ALL"), rows, paint) if rows else ["no request has failed"]


def _workers(history: History, paint: _Paint) -> list[str]:
    now = history.now
    up, memory = now.by("velox_worker_up", "worker"), now.by("velox_worker_resident_bytes", "worker")
    ages = now.by("velox_worker_heartbeat_age_seconds", "worker")
    rows = [
        (
            worker,
            paint.good("serving") if is_up else paint.bad("not serving"),
            f"{memory.get(worker, 0.0) / 2**20:.0f} MiB",
            _span(ages.get(worker)),
        )
        for worker, is_up in up.items()
    ]
    replaced = now.total("velox_worker_restarts_total")
    return [*_table(("WORKER", "STATE", "MEMORY", "HEARTBEAT"), rows, paint), f"{_number(replaced)} replaced"]


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], paint: _Paint) -> list[str]:
    """Return lines with the first two columns to the left, the others to the right."""
    widths = [max(len(name), *(_width(row[n]) for row in rows), 0) for n, name in enumerate(names)]

    def line(cells: Sequence[str]) -> str:
        pads = [" " * (width - _width(cell)) for width, cell in zip(widths, cells, strict=True)]
        parts = [cell + pad if n < 2 else pad + cell for n, (cell, pad) in enumerate(zip(cells, pads, strict=True))]
        return "  ".join(parts).rstrip()

    return [paint.bold(line(names)), *map(line, rows)]


def _shown(name: str) -> str:
    """Return a name for a terminal: what could move its cursor is not in it."""
    text = "".join(each if each.isprintable() else "?" for each in name)
    return text if len(text) <= _MOST_NAME else f"{text[: _MOST_NAME - 1]}…"


def _visible(text: str) -> list[str]:
    """Return a text as its letters and its colours, each one item."""
    found: list[str] = []
    while text:
        end = text.find("m") + 1 if text.startswith("\x1b[") else 1
        found.append(text[:end])
        text = text[end:]
    return found


def _width(text: str) -> int:
    return sum(not each.startswith("\x1b") for each in _visible(text))


def _clipped(line: str, width: int) -> str:
    if len(line) <= width or _width(line) <= width:
        return line
    kept, n = "", 0
    for each in _visible(line):
        if each.startswith("\x1b"):
            kept += each
        elif n < width:
            kept, n = kept + each, n + 1
    return kept


def _number(value: float) -> str:
    if value >= 100_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _span(value_s: float | None) -> str:
    if value_s is None:
        return _NONE
    for least_s, scale, unit in ((172_800, 86_400, "days"), (7200, 3600, "h"), (120, 60, "min"), (1, 1, "s")):
        if value_s >= least_s:
            return f"{value_s / scale:.0f} {unit}" if value_s >= 120 else f"{value_s:.2f} s"
    return f"{value_s * 1000:.0f} ms" if value_s >= 0.001 else f"{value_s * 1e6:.0f} us"
