"""The storm's upstream, a process of its own: answers each request as the request's plan says, and notes its end.

    python -m tests.storm.upstream [--tls CERT KEY]      prints one line of JSON with its ports

Knows: what each fault means, who is told of what. Does not know: HTTP (outlets.py), gateways.

The control port answers any line with a report as JSON, and closes: for each mark how often it was tried, when its last
attempt began and when the gateway gave it up (monotonic seconds, the same clock in every process of a machine), whether
another's fault took its connection; and how many connections are open. The line "forget" clears what was noted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import ssl
import time
from typing import Final

import uvloop

from tests.outlets import Asked, Entry, Http1Link, Http2Link, Outlet
from tests.storm.plan import Fault, Plan

__all__ = ["Book", "answer"]

SLOW_S: Final = 0.02


class Book:
    """What this upstream has seen."""

    def __init__(self) -> None:
        self.entries: Final[dict[str, Entry]] = {}
        self.n_open = 0
        self.n_warmups = 0
        self.n_accepted = 0
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def begin(self, mark: str) -> Entry:
        """Note an attempt."""
        before = self.entries.get(mark)
        entry = self.entries[mark] = Entry(1, time.monotonic())
        if before is not None:
            entry.n_attempts, entry.is_hit = before.n_attempts + 1, before.is_hit
        return entry

    def opened(self, n: int) -> None:
        """See Player."""
        self.n_open += n
        self.n_accepted += max(0, n)

    def play(self, asked: Asked, outlet: Outlet) -> None:
        """See Player."""
        method, body = asked.method, asked.body
        if method == "HEAD" or not body:
            self.n_warmups += 1
            outlet.head(200, {"content-type": "application/json"}, 2)
            if method != "HEAD":
                outlet.send(b"{}")
            outlet.end()
            return
        plan = Plan.of_request(body)
        outlet.entry = self.begin(plan.mark)
        task = asyncio.get_running_loop().create_task(answer(plan, outlet, outlet.entry.n_attempts))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()  # a bug of the storm's own must not pass for a fault

    def report(self) -> dict[str, object]:
        """Return everything, as it is sent to who asks."""
        calls = {m: (e.n_attempts, e.began_s, e.left_s, e.ended_s, e.is_hit) for m, e in self.entries.items()}
        counts = {"open": self.n_open, "accepted": self.n_accepted, "playing": len(self._tasks)}
        return {**counts, "warmups": self.n_warmups, "calls": calls}


async def answer(plan: Plan, outlet: Outlet, n_attempt: int) -> None:
    """Do what the plan says."""
    fault = Fault.NONE if plan.once and n_attempt > 1 else plan.fault
    before_head = {Fault.EARLY: outlet.cut, Fault.REFUSE: outlet.refuse, Fault.GOAWAY_LAST: outlet.goaway_last}
    match fault:
        case Fault.EARLY | Fault.REFUSE | Fault.GOAWAY_LAST:
            before_head[fault]()
        case Fault.SILENT:
            await outlet.left.wait()
        case Fault.ERROR_500 | Fault.ERROR_429 | Fault.BACK_OFF:
            _refuse(plan, outlet, fault)
        case _:
            if fault is Fault.GOAWAY:
                outlet.goaway()
            length = None
            if not plan.stream or fault is Fault.SHORT:
                length = len(plan.answer())
            kind = "text/event-stream" if plan.stream else "application/json"
            outlet.head(200, {"content-type": kind, "x-storm-mark": plan.mark}, length)
            await _body(plan, outlet, fault)
    outlet.entry.ended_s = time.monotonic()


def _refuse(plan: Plan, outlet: Outlet, fault: Fault) -> None:
    status = 500 if fault is Fault.ERROR_500 else 429
    body = plan.error_body(status)
    fields = {"content-type": "application/json", "x-storm-mark": plan.mark}
    if fault is Fault.BACK_OFF:
        fields["retry-after"] = "8"
    elif status == 429:
        fields["retry-after-ms"] = "20"
    outlet.head(status, fields, len(body))
    outlet.send(body)
    outlet.end()


async def _body(plan: Plan, outlet: Outlet, fault: Fault) -> None:
    for number, piece in enumerate(plan.pieces()):
        if number == plan.at and fault in (Fault.CUT, Fault.RESET, Fault.STALL, Fault.SHORT):
            outlet.send(piece[: len(piece) // 2 * (number % 2)])
            await _strike(outlet, fault)
            return
        if fault is Fault.DRIP:
            for at in range(0, len(piece), max(1, len(piece) // 5)):
                outlet.send(piece[at : at + max(1, len(piece) // 5)])
                await asyncio.sleep(0)
        else:
            outlet.send(piece)
        if fault is Fault.SLOW and number < 10:
            await asyncio.sleep(SLOW_S)
        elif number % 4 == 0:
            await asyncio.sleep(0)  # so that pieces of several answers mix on a connection
    outlet.end()


async def _strike(outlet: Outlet, fault: Fault) -> None:
    # What was sent goes out first, as it would from a server that dies later.
    await asyncio.sleep(0)
    match fault:
        case Fault.CUT:
            outlet.cut()
        case Fault.RESET:
            outlet.lose()
        case Fault.SHORT:
            outlet.end()
        case _:
            await outlet.left.wait()


async def _control(book: Book, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    line = await reader.readline()
    if line == b"forget\n":
        book.entries.clear()
    writer.write(json.dumps(book.report()).encode())
    writer.close()


async def serve(tls: ssl.SSLContext | None, tls_http2: ssl.SSLContext | None) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    book = Book()
    http1 = await loop.create_server(lambda: Http1Link(book), "127.0.0.1", 0, ssl=tls, backlog=4096)
    http2 = await loop.create_server(lambda: Http2Link(book), "127.0.0.1", 0, ssl=tls_http2, backlog=4096)
    control = await asyncio.start_server(lambda r, w: _control(book, r, w), "127.0.0.1", 0)
    names = {"http1": http1, "http2": http2, "control": control}
    print(json.dumps({name: server.sockets[0].getsockname()[1] for name, server in names.items()}), flush=True)
    await asyncio.Event().wait()


def _context(files: list[str] | None, protocol: str) -> ssl.SSLContext | None:
    if files is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    context.set_alpn_protocols([protocol])
    return context


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm.upstream")
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"))
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    uvloop.run(serve(_context(given.tls, "http/1.1"), _context(given.tls, "h2")))


if __name__ == "__main__":
    main()
