"""How long one turn of the loop takes while upstreams send as much as is read (X8, X9), in virtual time.

Each connection has a reply that never ends, of which every byte takes a while to be gone through.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.net.upstream_wire import KIB, Loop, Owner, Sink, Transport, asked
from velox.heads import ReplyHead
from velox.net.read_turns import READ_TURN_S
from velox.net.upstream.http1 import Http1Connection
from velox.net.upstream.interface import ReadBuffer

MOST_S: Final = 0.005  # of any turn
PINGS_S: Final = 0.3e-6  # for a byte of pings that are translated, before modules are compiled
READ_S: Final = 20e-6  # for any read
ENDLESS: Final = 1 << 40
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % ENDLESS


class Costly(Sink):
    """Takes a while for each byte. Keeps nothing."""

    def __init__(self, loop: Loop, byte_s: float) -> None:
        super().__init__()
        self._loop: Final = loop
        self.byte_s = byte_s
        self.n_bytes = 0

    def on_reply(self, head: ReplyHead | None, data: bytes, end: bool) -> None:
        self.n_bytes += len(data)
        self._loop.now_s += READ_S + len(data) * self.byte_s


class Flood:
    """An upstream that sends `burst` bytes at once, each time all of them were read."""

    def __init__(self, loop: Loop, buffer: ReadBuffer, byte_s: float, burst: int = ENDLESS) -> None:
        self.sink: Final = Costly(loop, byte_s)
        self._burst: Final = burst
        self._transport: Final = Transport()
        self._connection: Final = Http1Connection(
            Owner(), buffer, b"api.example", cast(asyncio.AbstractEventLoop, loop)
        )
        self._connection.connection_made(cast(asyncio.BaseTransport, self._transport))
        self._transport.protocol = self._connection
        self._connection.open(asked(), self.sink)
        self._transport.read(HEAD)

    def poll(self) -> None:
        """Have what is there read, as the loop does: up to 32 times in a row, while reads fill the buffer."""
        left = self._burst
        for _ in range(32):
            if not (left and self._transport.is_reading()):
                return
            room = self._connection.get_buffer(-1)
            assert len(room), "a loop takes no buffer without room"
            n_bytes = min(left, len(room))
            left -= n_bytes
            self._connection.buffer_updated(n_bytes)
            if n_bytes < len(room):
                return


class Worker:
    """All upstream connections of a worker."""

    def __init__(self) -> None:
        self.loop: Final = Loop()
        self.buffer: Final = ReadBuffer(clock=self.loop.time)
        self.floods: list[Flood] = []

    def flood(self, n: int, byte_s: float, burst: int = ENDLESS) -> None:
        self.floods += [Flood(self.loop, self.buffer, byte_s, burst) for _ in range(n)]

    def turn(self) -> float:
        """Take a turn; return how long it took."""
        began_s = self.loop.now_s
        self.loop.turn()
        for flood in self.floods:
            flood.poll()
        return self.loop.now_s - began_s


def test_flood_of_costly_events_takes_a_bounded_time_of_every_turn() -> None:
    """X8: reads that were made short, because they take long, are timed as long ones: the loop offers 32 in a row."""
    worker = Worker()
    worker.flood(1, PINGS_S)
    assert worker.turn() < MOST_S
    turns = [worker.turn() for _ in range(200)]
    assert max(turns) < 2 * READ_TURN_S, "half a millisecond over, at most"


def test_flood_goes_on_after_a_turn_that_took_long() -> None:
    """A read during which another program had the core makes the next ones short, for a moment only."""
    worker = Worker()
    worker.flood(1, PINGS_S / 100)
    for _ in range(10):
        worker.turn()
    (flood,) = worker.floods
    flood.sink.byte_s = 0.008 / (128 * KIB)
    worker.turn()
    flood.sink.byte_s = PINGS_S / 100
    for _ in range(20):
        worker.turn()
    n_bytes = flood.sink.n_bytes
    worker.turn()
    assert flood.sink.n_bytes - n_bytes > 64 * KIB


def test_crowd_of_floods_that_begins_at_once_takes_no_long_turn() -> None:
    """Sixty connections whose first reads fall into one turn: once its time is over, they read next to nothing."""
    worker = Worker()
    worker.flood(60, PINGS_S)
    first = worker.turn()
    assert first < 60 * 0.0015, "each reads 4 KiB in place of 8"
    for _ in range(60):
        worker.turn()
    assert max(worker.turn() for _ in range(200)) < MOST_S
    n_bytes = [flood.sink.n_bytes for flood in worker.floods]
    assert max(n_bytes) < 3 * min(n_bytes), "they take turns"


def test_large_reply_that_passes_waits_behind_no_flood() -> None:
    """Reads that cost little have a line of their own: 4 MiB beside fifty floods."""
    worker = Worker()
    worker.flood(50, PINGS_S)
    for _ in range(60):
        worker.turn()
    worker.flood(1, 1e-9)
    n_turns = 0
    while worker.floods[-1].sink.n_bytes < 4 * KIB * KIB:
        assert worker.turn() < MOST_S
        n_turns += 1
    assert n_turns < 60


@pytest.mark.parametrize("burst", [250, 1000, 2 * KIB, 4 * KIB - 1])
def test_bursts_that_are_shorter_than_what_is_timed_are_counted(burst: int) -> None:
    """Of the bytes that come in short reads some are timed; by these the others are."""
    worker = Worker()
    worker.flood(30, 2 * PINGS_S, burst)
    for _ in range(60):
        worker.turn()
    assert max(worker.turn() for _ in range(200)) < MOST_S


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(min_value=1, max_value=20),
            st.floats(min_value=1e-9, max_value=1e-6),
            st.integers(min_value=64, max_value=1 << 20),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_floods_together_leave_turns_short_and_all_are_read(floods: list[tuple[int, float, int]]) -> None:
    worker = Worker()
    for flood in floods:
        worker.flood(*flood)
    for _ in range(100):
        worker.turn()
    took = sorted(worker.turn() for _ in range(100))
    assert took[-1] < MOST_S + 80 * READ_S
    before = [flood.sink.n_bytes for flood in worker.floods]
    for _ in range(400):
        worker.turn()
    assert all(flood.sink.n_bytes > n for flood, n in zip(worker.floods, before, strict=True)), "none stands still"
