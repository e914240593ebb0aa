"""What the workers are doing: /debug/pprof/tasks, connections and loop, as text for people and as JSON.

Knows: how the workers' answers become one, and how a table is written. Does not know: how workers are asked, or where
they have it from (profiling/running.py says what there is).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Generic, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec

from velox.admin.message import TEXT, AdminRequest, RefusalError, Reply
from velox.profiling.running import (
    LongTurns,
    OpenConnection,
    OpenConnections,
    RunningRequest,
    RunningRequests,
)

__all__ = ["RUNNING_PAGES", "Ask", "Merged", "RunningPages", "running_requests"]

RUNNING_PAGES: Final = ("/debug/pprof/tasks", "/debug/pprof/connections", "/debug/pprof/loop")

# Asks all workers what, and which of it; returns the answers by slot, None where none came.
Ask: TypeAlias = Callable[[str, str], Awaitable[list[bytes | None]]]
Row = TypeVar("Row")
Told = TypeVar("Told")

_FORMATS: Final = ("text", "json")
_JSON: Final = "application/json"


class Merged(msgspec.Struct, Generic[Row], frozen=True):
    """The rows of all workers. total: how many there are, with those that no worker has told of.

    missing: slots of workers that did not answer. unseen: what this build can't see.
    """

    total: int
    missing: list[int]
    rows: list[Row]
    unseen: str = ""


async def running_requests(ask: Ask) -> Merged[RunningRequest]:
    """Return the requests that have not ended, the oldest first."""
    found, missing = _read(await ask("tasks", ""), RunningRequests)
    rows = [msgspec.structs.replace(row, worker=slot) for slot, told in found for row in told.rows]
    rows.sort(key=lambda row: -row.age_s)
    return Merged(sum(told.total for _, told in found), missing, rows)


class RunningPages:
    """Serves the pages. unix_s: now, in Unix time."""

    def __init__(self, ask: Ask, unix_s: Callable[[], float] = time.time) -> None:
        self._ask: Final = ask
        self._unix_s: Final = unix_s

    def __repr__(self) -> str:
        return "<RunningPages>"

    async def reply(self, request: AdminRequest) -> Reply:
        """Ask the workers. Raises RefusalError(400) for a bad query."""
        as_json = _format(request) == "json"
        if request.is_head:
            return Reply(200, None, _JSON if as_json else TEXT)
        match request.path:
            case "/debug/pprof/tasks":
                requests = await running_requests(self._ask)
                return _shown(requests, None if as_json else _request_lines(requests))
            case "/debug/pprof/connections":
                connections = await self._connections()
                return _shown(connections, None if as_json else _connection_lines(connections))
            case _:
                return await self._loop(as_json=as_json)

    async def _connections(self) -> Merged[OpenConnection]:
        found, missing = _read(await self._ask("connections", ""), OpenConnections)
        rows = [msgspec.structs.replace(row, worker=slot) for slot, told in found for row in told.rows]
        rows.sort(key=lambda row: (row.side, row.upstream))  # and by worker and age, as they came
        return Merged(sum(told.total for _, told in found), missing, rows)

    async def _loop(self, *, as_json: bool) -> Reply:
        found, missing = _read(await self._ask("loop", ""), LongTurns)
        rows = [msgspec.structs.replace(row, worker=slot) for slot, told in found for row in told.rows]
        rows.sort(key=lambda row: -row.at_s)
        unseen = next((told.unseen for _, told in found if told.unseen), "")
        turns = Merged(sum(told.total for _, told in found), missing, rows, unseen)
        if as_json:
            return _shown(turns, None)
        threshold_s = max((told.threshold_s for _, told in found), default=0.0)
        lines = [f"turns of an event loop that lasted {threshold_s * 1e3:g} ms and more: {turns.total}"]
        for row in rows:
            ago_s = self._unix_s() - row.at_s
            lines += ["", f"worker {row.worker}, {ago_s:.1f} s ago, for at least {row.lasted_s * 1e3:.0f} ms"]
            lines += [f"  {frame}" for frame in row.stack] or ["  (no code of Python was interrupted)"]
        return _shown(turns, lines)


def _read(answers: Sequence[bytes | None], kind: type[Told]) -> tuple[list[tuple[int, Told]], list[int]]:
    """Return the answers with their slots, and the slots without one."""
    found: list[tuple[int, Told]] = []
    missing: list[int] = []
    for slot, answer in enumerate(answers):
        try:
            if answer is None:
                raise msgspec.DecodeError("no answer")
            found.append((slot, msgspec.json.decode(answer, type=kind)))
        except msgspec.DecodeError:
            missing.append(slot)
    return found, missing


def _format(request: AdminRequest) -> str:
    pairs = parse_qsl(request.query, keep_blank_values=True)
    if len(pairs) > 1 or any(name != "format" or value not in _FORMATS for name, value in pairs):
        raise RefusalError(400, "the only parameter is format, text or json")
    return pairs[0][1] if pairs else "text"


def _shown(merged: Merged[Row], lines: list[str] | None) -> Reply:
    if lines is None:
        return Reply(200, msgspec.json.encode(merged) + b"\n", _JSON)
    about = [f"worker {slot} did not answer and is not shown" for slot in merged.missing]
    if merged.unseen:
        about.append(f"compiled build: {merged.unseen}, or stand as what ran next")
    return Reply(200, "".join(f"{line}\n" for line in [*about, *lines]).encode(), TEXT)


def _request_lines(merged: Merged[RunningRequest]) -> list[str]:
    head = ("age", "phase", "request id", "route", "upstream", "model", "key", "key id", "attempts", "out", "worker")
    rows = [
        (
            f"{row.age_s:.3f}",
            row.phase,
            row.id,
            row.route_name or row.endpoint,
            row.upstream,
            row.model,
            row.key,
            row.key_id,
            " ".join([str(row.attempts), *row.tried]),
            str(row.bytes_out),
            str(row.worker),
        )
        for row in merged.rows
    ]
    return [_count("requests run or are queued", merged.total, len(rows)), *_table(head, rows)]


def _connection_lines(merged: Merged[OpenConnection]) -> list[str]:
    head = ("side", "peer", "protocol", "state", "streams", "age", "in", "out", "upstream", "worker")
    rows = [
        (
            row.side,
            row.peer or "-",
            f"{row.protocol or '-'}{' TLS' if row.tls else ''}",
            row.state,
            str(row.streams),
            f"{row.age_s:.1f}",
            "-" if row.bytes_in is None else str(row.bytes_in),
            "-" if row.bytes_out is None else str(row.bytes_out),
            row.upstream or "-",
            str(row.worker),
        )
        for row in merged.rows
    ]
    return [_count("connections are open", merged.total, len(rows)), *_table(head, rows)]


def _count(what: str, total: int, n_shown: int) -> str:
    return f"{total} {what}" if total == n_shown else f"{total} {what}; here are {n_shown}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write columns. What a client has sent is printable ASCII here: nothing of it moves a terminal's cursor."""
    if not rows:
        return
    shown = [[_plain(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _plain(text: str) -> str:
    return text.encode("unicode_escape").decode()
