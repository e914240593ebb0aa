"""Thousands of clients that leave, in every phase: how soon the upstream was told, and what was left behind.

Knows: how a phase is brought about, where its end can be seen. Does not know: how a reply is judged (client.py).

Two clocks are read. `told`: from the client's leaving until the upstream saw its stream reset or its connection closed.
`given up`: until the gateway accounted for the exchange, which is all that can be seen of one that waits in the queue,
for a connection, or before the next attempt; the access log's times are whole milliseconds.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import random
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.e2e.watching import until
from tests.storm.client import BAD, Outcome, Result
from tests.storm.faults import MAX_GROWTH, ask_all
from tests.storm.ground import Ground, Held, Kind, ground
from tests.storm.plan import Fault, Plan

__all__ = ["Cancels", "Phase", "cancels"]

N_CLIENTS: Final = 100
_LOG_S: Final = 20.0
_PATH: Final = "/v1/storm/{mark}"
# No time-out of the gateway's may end what a client is to end.
_PATIENT: Final = {
    "VELOX_UPSTREAM_CONNECT_TIMEOUT": "60s",
    "VELOX_UPSTREAM_TLS_TIMEOUT": "60s",
    "VELOX_QUEUE_TIMEOUT": "60s",
    "VELOX_EGRESS_IDLE_TIMEOUT": "1s",
    "VELOX_RETRY_BUDGET": "1000",
    "VELOX_RETRY_BUDGET_MIN": "1000000",
}
_BLIND: Final = {"VELOX_READY_REQUIRES_UPSTREAM": "off"}
_N_HOLDERS: Final = 4
# Handshakes that a worker may have under way at once, whoever waits for them.
_MAX_DIALS: Final = 64
# One of so many stays, beside those that leave, and must get its whole answer.
_SIBLING: Final = 10

# What the upstream may hear of a client that has left.
_TOLD_S: Final = 0.1
# Who leaves at a time of chance may be out of the phase by then; with fewer the phase would not be tested.
_FEWEST: Final = 0.4


@dataclass
class Phase:
    """The cancels of one phase. told_ms: empty where the upstream has nothing to see."""

    name: str
    log_names: tuple[str, ...]
    n_asked: int = 0
    results: list[Result] = field(default_factory=list)
    told_ms: list[float] = field(default_factory=list)
    given_up_ms: list[float] = field(default_factory=list)
    n_untold: int = 0
    n_in_phase: int = 0
    n_lines: int = 0
    n_attempts_too_many: int = 0
    held: list[Held] = field(default_factory=list)

    @property
    def n_cancelled(self) -> int:
        """Clients that left before their reply was whole."""
        return sum(r.outcome is Outcome.CANCELLED for r in self.results)

    def problems(self) -> Iterator[str]:
        """Return what may not be, but for times, which a busy machine stretches."""
        for result in self.results:
            is_sibling = result.plan.leaves_after < 0
            if result.outcome in BAD or (is_sibling and result.outcome is not Outcome.WHOLE):
                yield f"{self.name}: {result.outcome} {result.plan} {result.reason} {result.note}"
        if self.n_untold:
            yield f"{self.name}: the upstream was never told of {self.n_untold} of {self.n_cancelled}"
        if self.n_lines != self.n_cancelled:
            yield f"{self.name}: {self.n_lines} lines of client_closed in the access log for {self.n_cancelled} cancels"
        if self.n_in_phase < _FEWEST * self.n_asked:
            yield f"{self.name}: only {self.n_in_phase} of {self.n_asked} were in this phase when they left"
        if self.n_attempts_too_many:
            yield f"{self.name}: {self.n_attempts_too_many} were tried again after their client had left"
        if self.held and self.held[-1].rss_bytes - self.held[1].rss_bytes > MAX_GROWTH:
            yield f"{self.name}: resident memory grew: {[h.rss_bytes >> 10 for h in self.held]} KiB"


@dataclass
class Cancels:
    """All phases over one kind of upstream connection."""

    kind: Kind
    phases: list[Phase]
    took_s: float = 0.0

    def problems(self) -> list[str]:
        """Return what may not be, but for times."""
        return [f"{self.kind}: {problem}" for phase in self.phases for problem in phase.problems()]

    def late(self, limit_ms: float, share: float) -> list[str]:
        """Return where `share` of the cancels took longer than `limit_ms`."""
        found = []
        for phase in self.phases:
            for name, times in (("told", phase.told_ms), ("given up", phase.given_up_ms)):
                took_ms = quantile(times, share) if times else 0.0
                if took_ms > limit_ms:
                    found.append(f"{self.kind}, {phase.name}: {name} after {took_ms:.0f} ms ({share:.0%} of them)")
        return found

    def table(self) -> str:
        """Return phase x times as a Markdown table."""
        lines = ["| phase | cancels | upstream told: p50/p99/max ms | given up: p50/p99/max ms | stayed and whole |"]
        lines.append("|---|---|---|---|---|")
        for phase in self.phases:
            n_whole = sum(r.outcome is Outcome.WHOLE and r.plan.leaves_after < 0 for r in phase.results)
            times = f"{_shown(phase.told_ms)} | {_shown(phase.given_up_ms)}"
            lines.append(f"| {phase.name} | {phase.n_cancelled} | {times} | {n_whole} |")
        return "\n".join([*lines, "", f"took {self.took_s:.1f} s"])


def cancels(kind: Kind, n_cancels: int) -> Cancels:
    """Cancel in every phase. Raises AssertionError when something is left behind, or a bug is in the log."""
    began_s = time.monotonic()
    each = math.ceil(n_cancels / 6)
    with ground(kind, _PATIENT | {"VELOX_EGRESS_POOL_CONNECTIONS": "2"}) as place:
        found = [
            _phase(place, Phase("waiting for the head", ("ttfb",)), Fault.SILENT, each),
            _phase(place, Phase("streaming", ("stream",)), Fault.STALL, each),
            _phase(place, Phase("backing off", ("backoff",)), Fault.BACK_OFF, each),
        ]
    with ground(kind, _PATIENT | {"VELOX_MAX_INFLIGHT": str(_N_HOLDERS)}) as place:
        found.insert(0, _queued(place, each))
    for name in ("dialing", "TLS handshake"):
        with _black_hole(accepts=name != "dialing") as port:
            scheme = "http" if name == "dialing" else "https"
            env = {**_PATIENT, **_BLIND}
            with ground(kind, env, upstream_url=f"{scheme}://127.0.0.1:{port}") as place:
                found.insert(1, _phase(place, Phase(name, ("connect", "dial", "tls")), None, each))
    return Cancels(kind, found, time.monotonic() - began_s)


def _plans(name: str, fault: Fault, n_cancels: int, *, siblings: bool) -> Iterator[Plan]:
    dice = random.Random(name)
    for number in range(n_cancels):
        # A stream is left with its first bytes; else a little later, so that most are where they are meant to be.
        leaves_after = 1 if fault is Fault.STALL else 0
        leaves_s = dice.uniform(0.02, 0.06)
        mark = f"{name.replace(' ', '').lower()}x{number}y"
        yield Plan(mark, n_pieces=3, fault=fault, at=2, leaves_after=leaves_after, leaves_s=leaves_s)
        if siblings and number % _SIBLING == 0:
            yield Plan(f"{mark}sibling", n_pieces=10, fault=Fault.SLOW)


def _phase(place: Ground, phase: Phase, fault: Fault | None, n_cancels: int) -> Phase:
    """Let clients leave while the upstream does `fault`; None: it is never reached."""
    place.upstream.report(b"forget\n")
    plans = list(_plans(phase.name, fault or Fault.NONE, n_cancels, siblings=fault is not None))
    phase.n_asked = n_cancels
    _ask_in_parts(place, phase, plans, reaches=fault is not None)
    _read_log(place, phase)
    if fault is not None:
        calls = place.upstream.calls()
        for result in phase.results:
            call = calls.get(result.plan.mark)
            if call is None or result.outcome is not Outcome.CANCELLED:
                continue
            # Another attempt may have been made before, on a connection that was closed as it was used.
            phase.n_attempts_too_many += call.n_attempts > 1 and call.began_s > result.left_s + _TOLD_S
            if fault is Fault.BACK_OFF and call.ended_s:
                continue  # answered; the gateway only waits
            if call.left_s:
                phase.told_ms.append(max(0.0, (call.left_s - result.left_s) * 1e3))
            else:
                phase.n_untold += 1
    place.check_log()
    return phase


def _queued(place: Ground, n_cancels: int) -> Phase:
    """Let clients leave the queue, behind exchanges that the upstream holds."""
    phase = Phase("queued", ("queue",))
    phase.n_asked = n_cancels
    holders = []
    for number in range(_N_HOLDERS):
        plan = Plan(f"holder{number}y", fault=Fault.SILENT)
        body = plan.request_body()
        sock = place.velox.connect()
        head = f"POST /v1/storm/holder HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        holders.append(sock)
    until(lambda: place.upstream.count("playing") == _N_HOLDERS, "the slots are taken")
    plans = list(_plans(phase.name, Fault.NONE, n_cancels, siblings=False))
    phase.results = ask_all(place, plans, N_CLIENTS, _PATH)
    _read_log(place, phase)
    assert not set(place.upstream.calls()) & {plan.mark for plan in plans}, "a request that was left was sent (F-41)"
    for sock in holders:
        sock.close()
    place.wait_quiet()
    place.check_log()
    return phase


def _ask_in_parts(place: Ground, phase: Phase, plans: list[Plan], *, reaches: bool) -> None:
    """Ask in four parts, each followed by a look at what is held: the first makes what is kept, the rest must not."""
    for part in range(4):
        phase.results += ask_all(place, plans[part::4], N_CLIENTS, _PATH)
        place.wait_quiet()
        phase.held.append(place.held())
    place.wait_descriptors(phase.held[0], n_dials=0 if reaches else _MAX_DIALS)


def _read_log(place: Ground, phase: Phase) -> None:
    """Join the access log with what the clients did."""
    left = {_PATH.replace("{mark}", r.plan.mark): r for r in phase.results if r.outcome is Outcome.CANCELLED}

    def lines() -> list[Mapping[str, object]]:
        log = place.velox.access_log()
        return [line for line in log if line["path"] in left and line["reason"] == "client_closed"]

    with contextlib.suppress(AssertionError):  # problems() says how many are missing
        until(lambda: len(lines()) >= len(left), "the lines of the access log", _LOG_S)
    found = lines()
    phase.n_lines = len(found)
    phase.n_in_phase = sum(line["phase"] in phase.log_names for line in found)
    for line in found:
        ended_s = datetime.datetime.fromisoformat(str(line["time"])).timestamp()
        phase.given_up_ms.append(max(0.0, (ended_s - left[str(line["path"])].left_wall_s) * 1e3))


@contextlib.contextmanager
def _black_hole(*, accepts: bool) -> Iterator[int]:
    """Yield a port where nobody answers. accepts: the kernel takes connections; else its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024 if accepts else 0)
        port: int = listener.getsockname()[1]
        if not accepts:
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
        yield port


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of them lie; there is one at least."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _shown(values: list[float]) -> str:
    if not values:
        return ""
    return f"{quantile(values, 0.5):.1f} / {quantile(values, 0.99):.1f} / {max(values):.1f} ({len(values)})"
