"""What a server may say over HTTP/2, right or wrong, drawn at random; and what RFC 9113 makes of it.

Knows: frames, and which rule a bad one breaks. Does not know: engines (http2_duel.py).
"""

from __future__ import annotations

import enum
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hpack import Encoder

__all__ = ["Blame", "Read", "Server", "Stage", "frame"]

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, PRIORITISED, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
# What a stream, and all of them, are sent at most: less than the windows that the engines under test announce.
_MAX_STREAM_BYTES: Final = 60_000
_MAX_BYTES: Final = 180_000
_ERRORS: Final = (0, 1, 2, 5, 7, 8, 11, 13, 0xFFFF)


class Blame(enum.IntEnum):
    """What a frame breaks. The greater ones may be taken for an error of the connection at any rate."""

    NONE = 0
    STREAM = 1
    CONNECTION = 2


class Stage(enum.IntEnum):
    """How far the reply of a stream has come, as its server sees it."""

    ASKED = 0
    BEGUN = 1
    ENDED = 2
    RESET = 3
    LEFT = 4  # the client has reset it


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes that come in one piece, what they break, and what was drawn (for the reader of a failure)."""

    wire: bytes
    blame: Blame
    names: tuple[str, ...]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame as it stands on the wire."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream_id) + payload


@dataclass
class Server:
    """Draws frames. stages: the streams that the client has opened."""

    dice: random.Random
    stages: dict[int, Stage] = field(default_factory=dict)
    is_leaving: bool = False
    _encoder: Encoder = field(default_factory=Encoder)
    _sent: dict[int, int] = field(default_factory=dict)

    def pick(self, *stages: Stage) -> int:
        """Return a stream at one of these stages; 0: there is none."""
        found = [stream_id for stream_id, stage in self.stages.items() if stage in stages]
        return self.dice.choice(found) if found else 0

    # -- what is right ------------------------------------------------------------------------------

    def right(self) -> tuple[str, bytes]:
        """Return a frame, or a few that belong together, that this server may send now."""
        draws: tuple[Callable[[], bytes], ...] = (
            self.head, self.head, self.head, self.body, self.body, self.body, self.body, self.end, self.trailers,
            self.interim, self.reset, self.window, self.window, self.settings, self.ping, self.pong, self.goaway,
            self.priority, self.unknown, self.late,
        )  # fmt: skip
        draw = self.dice.choice(draws)
        return draw.__name__, draw()

    def head(self) -> bytes:
        """A reply's head, alone or with the end, in one piece or in several."""
        stream_id = self.pick(Stage.ASKED)
        if not stream_id:
            return b""
        is_end = self.dice.random() < 0.2
        self.stages[stream_id] = Stage.ENDED if is_end else Stage.BEGUN
        fields = [(":status", self.dice.choice(("200", "204", "404", "503")) if is_end else "200")]
        fields += [("x-n", str(self.dice.randrange(50))), ("x-long", "y" * self.dice.choice((0, 10, 900)))]
        return self._block(stream_id, fields, is_end=is_end)

    def body(self) -> bytes:
        """Some of a body, padded at times; the end with it at times."""
        stream_id = self.pick(Stage.BEGUN)
        size = self.dice.choice((0, 1, 10, 1_000, 9_000))
        padding = self.dice.choice((None, None, None, 0, 1, 255))
        room = min(_MAX_STREAM_BYTES - self._sent.get(stream_id, 0), _MAX_BYTES - sum(self._sent.values()))
        if not stream_id or room < size + 256:
            return b""
        self._sent[stream_id] = self._sent.get(stream_id, 0) + size + (padding or 0) + 1
        is_end = self.dice.random() < 0.25
        if is_end:
            self.stages[stream_id] = Stage.ENDED
        return self._data(stream_id, self.dice.randbytes(size), is_end=is_end, padding=padding)

    def end(self) -> bytes:
        """The end alone."""
        stream_id = self.pick(Stage.BEGUN)
        if stream_id:
            self.stages[stream_id] = Stage.ENDED
        return self._data(stream_id, b"", is_end=True) if stream_id else b""

    def trailers(self) -> bytes:
        """The end with trailers."""
        stream_id = self.pick(Stage.BEGUN)
        if not stream_id:
            return b""
        self.stages[stream_id] = Stage.ENDED
        return self._block(stream_id, [("x-trailer", "t")], is_end=True)

    def interim(self) -> bytes:
        """A 1xx reply."""
        stream_id = self.pick(Stage.ASKED)
        return self._block(stream_id, [(":status", self.dice.choice(("100", "103")))]) if stream_id else b""

    def reset(self) -> bytes:
        """The end of a stream by an error, or of a request that is not wanted to its end."""
        stream_id = self.pick(Stage.ASKED, Stage.BEGUN, Stage.ENDED)
        if not stream_id:
            return b""
        if self.stages[stream_id] is not Stage.ENDED:
            self.stages[stream_id] = Stage.RESET
        return frame(RST, 0, stream_id, struct.pack(">I", self.dice.choice(_ERRORS)))

    def window(self) -> bytes:
        """More room for a request's body."""
        stream_id = self.dice.choice((0, self.pick(*Stage)))
        return frame(WINDOW, 0, stream_id, struct.pack(">I", self.dice.choice((1, 100, 20_000))))

    def settings(self) -> bytes:
        """New settings. A window is not made smaller here: what is on its way then is nobody's fault."""
        drawn = self.dice.choice(
            ((), ((3, 100),), ((3, 3),), ((4, 65_535),), ((4, 80_000),), ((5, 20_000),), ((0x99, 9),))
        )
        payload = b"".join(struct.pack(">HI", *each) for each in drawn)
        return frame(SETTINGS, 0, 0, payload)

    def ping(self) -> bytes:
        """A question."""
        return frame(PING, 0, 0, self.dice.randbytes(8))

    def pong(self) -> bytes:
        """An answer to a question that was ours."""
        return frame(PING, ACK, 0, b"velox-up")

    def goaway(self) -> bytes:
        """No new streams. Not often: it ends what else could be drawn."""
        if self.is_leaving or self.dice.random() < 0.6 or not self.stages:
            return b""
        self.is_leaving = True
        last = self.dice.choice((0, 2**31 - 1, max(self.stages), self.dice.choice(list(self.stages))))
        for stream_id in self.stages:
            if stream_id > last and self.stages[stream_id] is not Stage.ENDED:
                self.stages[stream_id] = Stage.RESET
        return frame(GOAWAY, 0, 0, struct.pack(">II", last, self.dice.choice((0, 0, 2, 11))) + b"why")

    def priority(self) -> bytes:
        """Priorities mean nothing (RFC 9113 §5.3.2), on any stream."""
        stream_id = self.dice.choice((self.pick(*Stage), 99)) or 99
        return frame(PRIORITY, 0, stream_id, struct.pack(">IB", 0, 7))

    def unknown(self) -> bytes:
        """An extension's frame is ignored (RFC 9113 §4.1)."""
        return frame(self.dice.choice((0x20, 0xFE)), self.dice.randrange(256), self.pick(*Stage), b"what?")

    def late(self) -> bytes:
        """What was on its way when the client reset its stream (RFC 9113 §5.1)."""
        stream_id = self.pick(Stage.LEFT)
        if not stream_id or self.dice.random() < 0.5:
            return b""
        return frame(WINDOW, 0, stream_id, struct.pack(">I", 10))

    # -- what is wrong ------------------------------------------------------------------------------

    def wrong(self) -> tuple[str, Blame, bytes]:
        """Return bytes that break a rule, and whom RFC 9113 lets pay for it at least."""
        begun, asked = self.pick(Stage.BEGUN), self.pick(Stage.ASKED)
        opened = begun or asked
        idle, four = max(self.stages, default=1) + 100, b"\0\0\0\1"
        whole = {
            "DATA on stream 0": frame(DATA, 0, 0, b"x"),
            "DATA on an idle stream": frame(DATA, 0, idle, b"x"),
            "HEADERS on stream 0": frame(HEADERS, END_HEADERS, 0, b"\x88"),
            "HEADERS on a server's stream": frame(HEADERS, END_HEADERS, 2, b"\x88"),
            "RST_STREAM on stream 0": frame(RST, 0, 0, four),
            "RST_STREAM on an idle stream": frame(RST, 0, idle, four),
            "RST_STREAM of 3 bytes": frame(RST, 0, opened or 1, b"abc"),
            "SETTINGS on a stream": frame(SETTINGS, 0, 1, b""),
            "SETTINGS of 5 bytes": frame(SETTINGS, 0, 0, b"12345"),
            "SETTINGS ACK with payload": frame(SETTINGS, ACK, 0, b"123456"),
            "SETTINGS with a window over 2^31-1": frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31)),
            "SETTINGS with frames of 1 byte": frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1)),
            "PING on a stream": frame(PING, 0, 1, bytes(8)),
            "PING of 7 bytes": frame(PING, 0, 0, bytes(7)),
            "GOAWAY on a stream": frame(GOAWAY, 0, 1, bytes(8)),
            "WINDOW_UPDATE of 3 bytes": frame(WINDOW, 0, 0, b"abc"),
            "WINDOW_UPDATE by 0": frame(WINDOW, 0, 0, bytes(4)),
            "WINDOW_UPDATE over 2^31-1": frame(WINDOW, 0, 0, struct.pack(">I", 2**31 - 1)) * 2,
            "WINDOW_UPDATE on an idle stream": frame(WINDOW, 0, idle, four),
            "PUSH_PROMISE": frame(PUSH, END_HEADERS, opened or 1, b"\0\0\0\2\x82\x86\x84\x41\x01a"),
            "CONTINUATION of nothing": frame(CONTINUATION, END_HEADERS, 1, b"\x88"),
            "PING inside a header block": frame(HEADERS, 0, asked or 1, b"\x88") + frame(PING, 0, 0, bytes(8)),
            "a frame over 16 KiB": frame(DATA, 0, opened or 1, bytes(16_385)),
            "no HTTP/2": b"HTTP/1.1 400 Bad Request\r\n\r\n",
        }
        if asked:
            whole["a header block that is none"] = frame(HEADERS, END_HEADERS, asked, b"\xff\xff\xff\xff\xff\xff\xff")
        if begun:
            whole["padding longer than its frame"] = frame(DATA, PADDED, begun, b"\xffab")
        of_stream = self._wrong_on_stream(asked, begun)
        name = self.dice.choice([*whole, *of_stream, *of_stream])
        if name not in of_stream:
            return name, Blame.CONNECTION, whole[name]
        wire = of_stream[name]()
        self.stages[int.from_bytes(wire[5:9], "big")] = Stage.LEFT
        return name, Blame.STREAM, wire

    def _wrong_on_stream(self, asked: int, begun: int) -> dict[str, Callable[[], bytes]]:
        found: dict[str, Callable[[], bytes]] = {}
        if asked:
            heads = {
                "a head without status": [("x-a", "b")],
                "a head with an upper-case name": [(":status", "200"), ("X-A", "b")],
                "a head with a pseudo field at its end": [("x-a", "b"), (":status", "200")],
                "a head with connection:": [(":status", "200"), ("connection", "close")],
                "a head with two statuses": [(":status", "200"), (":status", "200")],
                "a head with a path": [(":status", "200"), (":path", "/")],
                "a head with two lengths": [(":status", "200"), ("content-length", "1"), ("content-length", "2")],
                "a head with a length that is none": [(":status", "200"), ("content-length", "+1")],
                "a head with LF": [(":status", "200"), ("x-a", "b\nc")],
            }
            for name, fields in heads.items():
                found[name] = lambda fields=fields: self._block(asked, fields)  # type: ignore[misc]
            found["DATA before a head"] = lambda: frame(DATA, 0, asked, b"x")
            found["a body over its length"] = lambda: (
                self._block(asked, [(":status", "200"), ("content-length", "1")])
                + frame(DATA, END_STREAM, asked, b"xy")
            )
            found["a body under its length"] = lambda: (
                self._block(asked, [(":status", "200"), ("content-length", "3")])
                + frame(DATA, END_STREAM, asked, b"xy")
            )
        if begun:
            found["trailers without an end"] = lambda: self._block(begun, [("x-trailer", "t")])
            found["trailers with a status"] = lambda: self._block(begun, [(":status", "200")], is_end=True)
            found["WINDOW_UPDATE by 0 on a stream"] = lambda: frame(WINDOW, 0, begun, bytes(4))
            found["WINDOW_UPDATE over 2^31-1 on a stream"] = lambda: frame(WINDOW, 0, begun, b"\x7f\xff\xff\xff") * 2
        return found

    def _block(self, stream_id: int, fields: list[tuple[str, str]], *, is_end: bool = False) -> bytes:
        encoded = [(name.encode(), value.encode()) for name, value in fields]
        block = self._encoder.encode(encoded)
        flags = END_STREAM if is_end else 0
        cuts = sorted(self.dice.randrange(len(block) + 1) for _ in range(self.dice.choice((0, 0, 1, 2))))
        first, *rest = [block[a:b] for a, b in zip([0, *cuts], [*cuts, len(block)], strict=True)]
        if self.dice.random() < 0.2:
            flags, first = flags | PADDED, bytes((3,)) + first + bytes(3)
        kinds = [(HEADERS, flags, first), *((CONTINUATION, 0, piece) for piece in rest)]
        kinds[-1] = (kinds[-1][0], kinds[-1][1] | END_HEADERS, kinds[-1][2])
        return b"".join(frame(kind, flags, stream_id, piece) for kind, flags, piece in kinds)

    def _data(self, stream_id: int, data: bytes, *, is_end: bool, padding: int | None = None) -> bytes:
        flags = END_STREAM if is_end else 0
        if padding is None:
            return frame(DATA, flags, stream_id, data)
        return frame(DATA, flags | PADDED, stream_id, bytes((padding,)) + data + bytes(padding))
