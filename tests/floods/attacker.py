"""Plays an attack on a gateway and measures it.

Knows: sockets, how an attack goes on and ends. Does not know: which attacks there are.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hyperframe.frame import DataFrame, Frame, GoAwayFrame, PingFrame

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.recorded_call import Call
from tests.e2e.recording import JSON, RecordingUpstream, healthy
from tests.floods.attacks import Attack, Ends
from tests.floods.gauge import Cost, Gauge
from tests.h2spec.table import EngineName
from tests.h2spec.talker import frame, uint32

__all__ = ["Outcome", "Target", "attack", "target"]

# How long an attacker waits for the end of its connection, or for what it asked for. None should come to it.
_PATIENCE_S: Final = 10.0
_LARGE_BODY: Final = b"x" * 1_000_000
_CODES: Final = {
    1: Ends.PROTOCOL,
    3: Ends.FLOW,
    5: Ends.CLOSED,
    9: Ends.COMPRESSION,
    11: Ends.CALM,
}


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway of one worker, and what is behind it."""

    velox: VeloxProcess
    upstream: RecordingUpstream


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attack went. ends: of each connection. n_calls: requests that reached the upstream, of each connection."""

    ends: Counter[str]
    n_calls: float
    cost: Cost


async def _script(call: Call) -> None:
    if call.target.endswith("/large"):
        await call.reply(200, JSON, _LARGE_BODY)
    else:
        await healthy(call)


@contextlib.contextmanager
def target(name: EngineName) -> Iterator[Target]:
    """Start a gateway whose clients speak HTTP/2 with this engine."""
    with RecordingUpstream(script=_script) as upstream:
        env = {
            **upstream.env(),
            "VELOX_LISTEN_HTTP2": "on",
            "VELOX_HTTP2_ENGINE": name,
            "VELOX_WORKERS": "1",
            "VELOX_ACCESS_LOG": "off",
            "VELOX_PATHS": "/v1/",
            "VELOX_RATE_LIMIT_RPM": "0",
        }
        with VeloxProcess(env) as velox:
            velox.wait_warm()
            yield Target(velox, upstream)


def attack(at: Target, flood: Attack) -> Outcome:
    """Play one attack; a plain request must pass after it."""
    at.upstream.forget()
    (pid,) = at.velox.worker_pids()
    gauge = Gauge(pid)
    ends: Counter[str] = Counter()
    gauge.begin()
    with contextlib.ExitStack() as held:
        for _ in range(flood.n_connections):
            connection = _Connection(held.enter_context(at.velox.connect()), gauge.cost)
            ends[connection.play(flood)] += 1
        if flood.is_held:
            n_calls = flood.n_calls * flood.n_connections
            until(lambda: len(at.upstream.calls) >= n_calls, f"{n_calls} requests reach the upstream", 60.0)
            _wait_quiet(gauge)  # replies come too
        cost = gauge.end()
    until(lambda: at.velox.metric("velox_client_connections") == 0, "every connection is gone")
    gauge.after()
    n_calls = len(at.upstream.calls)
    assert at.velox.request("GET", "/v1/models").status == 200, "the gateway serves no more"
    return Outcome(ends, n_calls / flood.n_connections, cost)


def _wait_quiet(gauge: Gauge) -> None:
    """Wait until the gateway does nothing more."""
    last, n_quiet = -1.0, 0

    def is_quiet() -> bool:
        nonlocal last, n_quiet
        before, last = last, gauge.cpu_s()
        n_quiet = n_quiet + 1 if last - before < 0.001 else 0
        return n_quiet == 20

    until(is_quiet, "the gateway is at rest", 30.0)


class _Connection:
    """One of the attacker's connections."""

    def __init__(self, sock: socket.socket, cost: Cost) -> None:
        self._socket: Final = sock
        self._cost: Final = cost
        self._buffer = b""
        self._is_over = False

    def play(self, flood: Attack) -> str:
        """Say all, and return how it ended."""
        sock = self._socket
        sock.settimeout(_PATIENCE_S)
        self._say(flood.hello + flood.says)
        if flood.is_held:
            return self._hold()
        if flood.drip:
            return self._drip(flood.drip)
        while (came := self._next()) is not None:
            if isinstance(came, GoAwayFrame):
                return _CODES.get(came.error_code, f"GOAWAY {came.error_code}")
            if "END_STREAM" in came.flags and Ends.ANSWERED in flood.ends:
                return Ends.ANSWERED
        return "closed without a word" if self._is_over else "nothing came"

    def _hold(self) -> str:
        """Wait until the gateway has read all that was said, which its answer to a PING tells."""
        self._say(frame(6, 0, 0, b"read all"))
        while (came := self._next()) is not None:
            if isinstance(came, PingFrame):
                return Ends.HELD
        return "not held"

    def _drip(self, n_bytes: int) -> str:
        """Take a reply byte by byte."""
        update = frame(8, 0, 1, uint32(1))
        n_got = 0
        while n_got < n_bytes:
            came = self._next()
            if came is None or isinstance(came, GoAwayFrame):
                return f"ended after {n_got} bytes"
            if isinstance(came, DataFrame):
                assert len(came.data) == 1, "more than the window came"
                n_got += 1
                self._say(update)
        return Ends.ANSWERED

    def _say(self, data: bytes) -> None:
        view = memoryview(data)
        with contextlib.suppress(ConnectionError):
            while view:
                n_sent = self._socket.send(view[: 1 << 18])
                self._cost.bytes_in += n_sent
                view = view[n_sent:]

    def _next(self) -> Frame | None:
        while len(self._buffer) < 9 or len(self._buffer) < 9 + int.from_bytes(self._buffer[:3]):
            try:
                came = self._socket.recv(1 << 18)
            except TimeoutError:
                return None
            except ConnectionError:
                came = b""
            if not came:
                self._is_over = True
                return None
            self._cost.bytes_out += len(came)
            self._buffer += came
        length = 9 + int.from_bytes(self._buffer[:3])
        whole, self._buffer = self._buffer[:length], self._buffer[length:]
        parsed, _ = Frame.parse_frame_header(memoryview(whole[:9]))
        if isinstance(parsed, GoAwayFrame | DataFrame):
            parsed.parse_body(memoryview(whole[9:]))
        return parsed
