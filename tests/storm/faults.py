"""Thousands of streams with faults and clients that leave: what became of each, and what was left behind.

Knows: what may not happen. Does not know: how a fault is made (upstream.py) or a reply is judged (client.py).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import uvloop

from tests.e2e.watching import until
from tests.storm.client import BAD, Client, Outcome, Result
from tests.storm.ground import Call, Ground, Held, Kind, ground
from tests.storm.plan import CONNECTION_WIDE, HARMLESS, Fault, Plan, draw
from velox.errors import Reason

__all__ = ["Storm", "ask_all", "storm"]

# Short, so that a storm with thousands of silent upstreams ends: 5 % of the requests meet one.
ENV: Final = {
    "VELOX_WORKERS": "2",
    "VELOX_EGRESS_POOL_CONNECTIONS": "4",
    "VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT": "2s",
    "VELOX_UPSTREAM_IDLE_TIMEOUT": "1s",
    "VELOX_EGRESS_IDLE_TIMEOUT": "1s",
    # Less than there are clients: some wait in the queue.
    "VELOX_MAX_INFLIGHT": "300",
    "VELOX_QUEUE_TIMEOUT": "30s",
}
N_CLIENTS: Final = 400
_LOG_S: Final = 5.0
# The first, one more where work may have been done (VELOX_RETRIES), two where surely none was; ten where the upstream
# said so itself, as HTTP/2 can.
_MAX_ATTEMPTS: Final = 4
_MAX_ATTEMPTS_HTTP2: Final = 12
# Of a gateway that does the same again and again; what its allocator keeps of a peak is there after the first half.
MAX_GROWTH: Final = 6 << 20


@dataclass
class Storm:
    """One storm and what came of it."""

    kind: Kind
    results: list[Result] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    lines: list[dict[str, object]] = field(default_factory=list)  # of the access log
    calls: dict[str, Call] = field(default_factory=dict)  # what the upstream knows of each mark
    connection_ends: dict[str, int] = field(default_factory=dict)  # of upstream connections, by cause
    took_s: float = 0.0

    def problems(self) -> list[str]:
        """Return what may not be, each with what to look at; none: all is well."""
        found = [f"{r.outcome}: {r.plan} {r.status} {r.reason} {r.note}" for r in self.results if r.outcome in BAD]
        found += [
            f"harmed without a fault: {r.plan} {r.outcome} {r.reason}" for r in self.results if self._is_harmed(r)
        ]
        most = _MAX_ATTEMPTS if self.kind.startswith("http1") else _MAX_ATTEMPTS_HTTP2
        found += [f"tried {c.n_attempts} times: {mark}" for mark, c in self.calls.items() if c.n_attempts > most]
        n_lines = collections.Counter(line["model"] for line in self.lines)
        for r in self.results:
            # One that left early may have left with its request in the kernel still.
            fewest = 0 if r.outcome is Outcome.CANCELLED else 1
            if not fewest <= n_lines[r.plan.mark] <= 1:
                found.append(f"{n_lines[r.plan.mark]} lines in the access log: {r.plan} {r.outcome} {r.note}")
        grown = self.held[-1].rss_bytes - self.held[-2].rss_bytes
        if grown > MAX_GROWTH:
            found.append(f"resident memory grew by {grown >> 10} KiB in the second half")
        return found

    def _is_harmed(self, result: Result) -> bool:
        """True when nothing was to happen to this one, here or on its connection, and something did."""
        if result.plan.fault not in HARMLESS or result.outcome in (Outcome.WHOLE, Outcome.CANCELLED, *BAD):
            return False
        if self.kind.startswith("http1"):
            return True  # nobody else is on its connection
        # Unknown to the upstream: it was on its way when the connection was lost.
        call = self.calls.get(result.plan.mark)
        return not call.is_hit if call is not None else result.reason != Reason.UPSTREAM_RESET.code

    def table(self) -> str:
        """Return fault x outcome as a Markdown table."""
        counts = collections.Counter((r.plan.fault, r.outcome) for r in self.results)
        outcomes = [o for o in Outcome if any(counts[f, o] for f in Fault)]
        lines = [f"| {self.kind}: fault | asked | " + " | ".join(outcomes) + " |", "|---" * (len(outcomes) + 2) + "|"]
        for fault in Fault:
            row = [counts[fault, outcome] for outcome in outcomes]
            if sum(row):
                wide = " (connection)" if fault in CONNECTION_WIDE else ""
                lines.append(f"| {fault}{wide} | {sum(row)} | " + " | ".join(str(n or "") for n in row) + " |")
        sums = [sum(counts[fault, outcome] for fault in Fault) for outcome in outcomes]
        lines.append(f"| all | {len(self.results)} | " + " | ".join(map(str, sums)) + " |")
        reasons = collections.Counter(
            f"{r.outcome}, {r.reason}" for r in self.results if r.reason and r.outcome is not Outcome.PASSED
        )
        lines += ["", "reasons: " + "; ".join(f"{name} {n}" for name, n in sorted(reasons.items()))]
        held = " -> ".join(f"{h.n_fds}/{h.n_upstream}/{h.rss_bytes / 2**20:.1f}" for h in self.held)
        lines.append(f"descriptors/upstream connections/resident MiB of the workers (begin, half, end): {held}")
        n_seconds = sum(r.is_second for r in self.results)
        lines.append(f"asked again because a kept connection was closed before a byte of a reply: {n_seconds}")
        ends = "; ".join(f"{cause} {n}" for cause, n in sorted(self.connection_ends.items()))
        lines.append(f"upstream connections ended: {ends}")
        lines.append(f"took {self.took_s:.1f} s")
        return "\n".join(lines)


def storm(kind: Kind, n_streams: int, seed: int) -> Storm:
    """Let one storm pass. Raises AssertionError when something is left behind, or a bug is in the log."""
    done = Storm(kind)
    with ground(kind, ENV) as place:
        # A calm beforehand: connections, buffers and caches are there.
        calm = (Plan(f"calm{number}", n_pieces=20) for number in range(300))
        ask_all(place, calm, N_CLIENTS)
        place.wait_quiet()
        done.held.append(place.held())
        began_s = time.monotonic()
        for half in (0, 1):
            numbers = range(half * n_streams // 2, (half + 1) * n_streams // 2)
            done.results += ask_all(place, (draw(number, seed) for number in numbers), N_CLIENTS)
            place.wait_quiet()
            done.held.append(place.wait_descriptors(done.held[0]))
        done.took_s = time.monotonic() - began_s
        done.calls = place.upstream.calls()
        done.lines = wait_lines(place, {r.plan.mark for r in done.results if r.outcome is not Outcome.CANCELLED})
        for sample, value in place.velox.metrics().items():
            if sample.startswith("velox_upstream_connections_ended_total{") and value:
                done.connection_ends[sample.split('"')[1]] = int(value)
        assert place.velox.request("GET", "/v1/models").status == 200, "healthy afterwards"
        place.check_log()
    assert len(done.results) == n_streams
    return done


def wait_lines(place: Ground, marks: set[str]) -> list[dict[str, object]]:
    """Return the access log, once it has a line for each of these."""

    def are_there() -> bool:
        return marks <= {str(line["model"]) for line in place.velox.access_log()}

    with contextlib.suppress(AssertionError):  # problems() says which are missing
        until(are_there, "the lines of the access log", _LOG_S)
    return place.velox.access_log()


def ask_all(place: Ground, plans: Iterable[Plan], n_clients: int, path: str = "/v1/chat/completions") -> list[Result]:
    """Let `n_clients` clients make these exchanges; return what each saw."""
    waiting = iter(plans)
    results: list[Result] = []

    async def work(plans: Iterator[Plan]) -> None:
        client = Client(place.velox.port, path)
        try:
            for plan in plans:
                results.append(await client.ask(plan))
        finally:
            client.close()

    async def work_together() -> None:
        await asyncio.gather(*(work(waiting) for _ in range(n_clients)))

    uvloop.run(work_together())
    return results
