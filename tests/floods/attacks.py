"""Floods: what each says on its connections, ready before the clock runs, and how it should end.

Knows: frames. Does not know: sockets (attacker.py), or what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hpack import Encoder, NeverIndexedHeaderTuple

from tests.h2spec.talker import END_HEADERS, END_STREAM, frame, uint32
from velox.heads import Header
from velox.protocol.http2.engine import PREFACE

__all__ = ["ATTACKS", "Attack", "Ends"]

_ACK: Final = frame(4, 1, 0)
_PING: Final = frame(6, 0, 0, bytes(8))


def _request(*more: Header, method: bytes = b"GET", path: bytes = b"/v1/models") -> bytes:
    """A block that puts nothing into the table, so that it can be said again and again."""
    fields = [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"a"), *more]
    return Encoder().encode([NeverIndexedHeaderTuple(*it) for it in fields])


_GET: Final = _request()
_POST: Final = _request((b"content-type", b"application/json"), method=b"POST", path=b"/v1/chat/completions")
_LARGE: Final = _request(path=b"/v1/large")


def _head(stream_id: int, block: bytes, *, end: bool = True, whole: bool = True) -> bytes:
    return frame(1, (END_HEADERS if whole else 0) | (END_STREAM if end else 0), stream_id, block)


def _each(n: int, make: Callable[[int], bytes]) -> bytes:
    """What is said on `n` streams, one after the other."""
    return b"".join(make(2 * i + 1) for i in range(n))


class Ends:
    """How a connection may end. An answer: it goes on, and what was asked for came."""

    CALM: Final = "GOAWAY ENHANCE_YOUR_CALM"
    PROTOCOL: Final = "GOAWAY PROTOCOL_ERROR"
    FLOW: Final = "GOAWAY FLOW_CONTROL_ERROR"
    CLOSED: Final = "GOAWAY STREAM_CLOSED"
    COMPRESSION: Final = "GOAWAY COMPRESSION_ERROR"
    HELD: Final = "held, then let go"
    ANSWERED: Final = "answered"


@dataclass(frozen=True, slots=True)
class Attack:
    """One flood.

    says: what is sent on each connection after the preface and settings. opening: the client's settings.
    ends: what may end the connection. n_connections: one after the other; side by side where they are held.
    reads: the attacker takes what it gets. is_held: it says all, then keeps the connection open without reading.
    n_calls: how many requests may reach the upstream.
    drip: the attacker gives a window of one byte whenever one came, so often.
    held_bytes: what the gateway may hold in memory for each connection.
    """

    name: str
    ids: str
    says: bytes
    ends: Sequence[str]
    opening: bytes = b""
    n_connections: int = 20
    reads: bool = True
    is_held: bool = False
    n_calls: int = 0
    drip: int = 0
    held_bytes: int = 0

    @property
    def hello(self) -> bytes:
        """The first bytes of each connection."""
        return PREFACE + frame(4, 0, 0, self.opening) + _ACK


def _setting(key: int, value: int) -> bytes:
    return key.to_bytes(2) + uint32(value)


_NO_WINDOW: Final = _setting(4, 0)
_FIELDS_101: Final = _request(*[(b"a", b"")] * 97)
_TOO_MUCH: Final = _request((b"content-length", b"1"), method=b"POST", path=b"/v1/chat/completions")
_CRUMBS: Final = _request(*[(b"cookie", b"")] * 5_000)
# A field goes into the table, and then each byte brings it again.
_BOMB: Final = _GET + b"\x40\x01a\x00" + b"\xbe" * 1_900
# As much as one head may hold (32 KiB), in 8 bytes, from the second on.
_LARGE_FIELD: Final = b"\x40\x01a" + b"\x7f\xa1\x1e" + b"x" * 4_000
_SMALL_FIELD: Final = b"\x40\x01a\x40" + b"x" * 64
_REFERENCES: Final = b"\xbe" * 7
_PARTS: Final = b"".join(frame(9, 0, 1, bytes(16_384)) for _ in range(60))


def _in_frames(stream_id: int, block: bytes) -> bytes:
    """HEADERS and the CONTINUATION frames that a block takes."""
    pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    frames = [_head(stream_id, pieces[0], whole=len(pieces) == 1)]
    frames += [frame(9, 0 if n < len(pieces) - 1 else END_HEADERS, stream_id, p) for n, p in enumerate(pieces) if n]
    return b"".join(frames)


def _reset(stream_id: int) -> bytes:
    return frame(3, 0, stream_id, uint32(8))


ATTACKS: Final[Sequence[Attack]] = [
    Attack("an honest request (to compare with)", "", _head(1, _GET), [Ends.ANSWERED], n_calls=1),
    Attack(
        "rapid reset, 10,000 streams",
        "B-45, CVE-2023-44487",
        _each(10_000, lambda n: _head(n, _GET) + _reset(n)),
        [Ends.CALM],
        n_calls=100,
    ),
    Attack(
        "made you reset: WINDOW_UPDATE of 0, 10,000",
        "B-45, CVE-2025-8671",
        _each(10_000, lambda n: _head(n, _POST, end=False) + frame(8, 0, n, uint32(0))),
        [Ends.CALM, Ends.PROTOCOL],
    ),
    Attack(
        "made you reset: DATA on half-closed streams, 10,000",
        "B-45, CVE-2025-8671",
        _each(10_000, lambda n: _head(n, _GET) + frame(0, 0, n, b"x")),
        [Ends.CALM, Ends.CLOSED],
    ),
    Attack(
        "made you reset: 101 fields, 10,000",
        "B-45, CVE-2025-8671",
        _each(10_000, lambda n: _head(n, _FIELDS_101)),
        [Ends.CALM, Ends.PROTOCOL],
    ),
    Attack(
        "made you reset: DATA over content-length, 10,000",
        "B-45, CVE-2025-8671",
        _each(10_000, lambda n: _head(n, _TOO_MUCH, end=False) + frame(0, 0, n, b"more")),
        [Ends.CALM],
    ),
    Attack(
        "CONTINUATION without end, 100,000 empty",
        "B-46, CVE-2024-27316",
        _head(1, _GET, whole=False) + frame(9, 0, 1) * 100_000,
        [Ends.CALM],
    ),
    Attack(
        "CONTINUATION without end, 960 KiB",
        "B-46, CVE-2024-27316",
        _head(1, _GET, whole=False) + _PARTS,
        [Ends.CALM],
    ),
    Attack("header bomb, 1,900 one-byte references", "B-46, CVE-2026-47774", _head(1, _BOMB), [Ends.CALM]),
    Attack(
        "64,000 changes of the table's size",
        "B-46",
        _in_frames(1, b"\x20" * 64_000 + _GET),
        [Ends.ANSWERED, Ends.COMPRESSION],
        n_calls=1,
    ),
    Attack("5,000 cookie crumbs", "B-46, CVE-2026-49975", _in_frames(1, _CRUMBS), [Ends.CALM]),
    Attack(
        "header bomb and zero window, held",
        "B-46, CVE-2026-47774",
        _head(1, _GET) + _head(3, _BOMB),
        [Ends.CALM],
        opening=_NO_WINDOW,
        n_calls=1,
    ),
    Attack(
        "largest heads by reference, 100 streams, zero window, held",
        "B-46",
        _head(1, _POST + _LARGE_FIELD, end=False)
        + b"".join(_head(n, _POST + _REFERENCES, end=False) for n in range(3, 201, 2)),
        [Ends.HELD],
        opening=_NO_WINDOW,
        is_held=True,
        held_bytes=1 << 20,
    ),
    Attack(
        "most fields by reference, 100 streams, zero window, held",
        "B-46",
        _head(1, _POST + _SMALL_FIELD, end=False)
        + b"".join(_head(n, _POST + b"\xbe" * 95, end=False) for n in range(3, 201, 2)),
        [Ends.HELD],
        opening=_NO_WINDOW,
        is_held=True,
        held_bytes=1 << 20,
    ),
    Attack("PING, 100,000", "B-47, CVE-2019-9512", _PING * 100_000, [Ends.CALM], reads=False),
    Attack("SETTINGS, 100,000", "B-47, CVE-2019-9515", frame(4, 0, 0) * 100_000, [Ends.CALM], reads=False),
    Attack(
        "SETTINGS of 2,700 entries, 100",
        "B-47, CVE-2019-9515",
        frame(4, 0, 0, _setting(0x99, 1) * 2_700) * 100,
        [Ends.CALM],
        reads=False,
    ),
    Attack(
        "PRIORITY, 100,000",
        "B-47, CVE-2019-9513",
        frame(2, 0, 9, uint32(0) + b"\0") * 100_000,
        [Ends.CALM],
        reads=False,
    ),
    Attack("WINDOW_UPDATE, 100,000", "B-47", frame(8, 0, 0, uint32(1)) * 100_000, [Ends.CALM], reads=False),
    Attack(
        "empty DATA, 100,000",
        "B-47, CVE-2019-9518",
        _head(1, _POST, end=False) + frame(0, 0, 1) * 100_000,
        [Ends.CALM],
        reads=False,
    ),
    Attack(
        "DATA of one byte, 60,000",
        "B-47",
        _head(1, _POST, end=False) + frame(0, 0, 1, b"x") * 60_000,
        [Ends.CALM],
        reads=False,
    ),
    Attack("unknown frames, 100,000", "B-47", frame(0xEE, 0, 0) * 100_000, [Ends.CALM], reads=False),
    Attack(
        "a window of 1 byte, 1,000 bytes of a reply one by one",
        "B-50",
        _head(1, _LARGE),
        [Ends.ANSWERED],
        opening=_setting(4, 1),
        n_connections=2,
        n_calls=1,
        drip=1_000,
    ),
    Attack(
        "the connection's window over 2^31-1",
        "B-50",
        frame(8, 0, 0, uint32(2**31 - 1)) * 10_000,
        [Ends.FLOW, Ends.CALM],
    ),
    Attack(
        "100 streams of a 1 MB reply, zero window, held",
        "B-50",
        _each(100, lambda n: _head(n, _LARGE)),
        [Ends.HELD],
        opening=_NO_WINDOW,
        is_held=True,
        n_connections=5,
        n_calls=100,
        held_bytes=(2304 << 10) + 100 * (32 << 10),  # the room of a connection, and what belongs to each stream
    ),
]
