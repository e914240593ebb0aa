"""What the admin process and the workers say to each other: orders, and answers in parts.

Knows: the messages on the channel between the two. Does not know: when one comes, or what an answer holds.

    admin to worker   {"op": "profile", "id": 7, "seconds": 10, "hz": 99}   {"op": "heap", "id": 8, "seconds": 10}
                      {"op": "ask", "id": 9, "what": "tasks", "which": ""}  {"op": "stop", "id": 7}
    worker to admin   {"id": 7, "part": 0, "last": false, "body": "<base64 of a part of the answer>"}
"""

from __future__ import annotations

import binascii
import socket
from base64 import b64decode, b64encode
from typing import Final, Literal, NamedTuple, TypeAlias, cast

import orjson

__all__ = ["ANSWER_BYTES", "Op", "Order", "Part", "read_order", "read_part", "receive", "write_parts"]

ANSWER_BYTES: Final = 64 * 1024 * 1024  # far above 20,000 stacks of 128 frames
_MESSAGE_BYTES: Final = 65_536  # no message is longer; 60 KB fit any socket buffer
_PART_BYTES: Final = 44_000  # 58.7 KB as base64

Op: TypeAlias = Literal["profile", "heap", "ask", "stop"]
_OPS: Final = frozenset({"profile", "heap", "ask", "stop"})


class Order(NamedTuple):
    """What a worker is to do. ident: of the order, or of the one to stop. seconds, hz: of a profile.

    what: is asked. which: of it; "" for all.
    """

    op: Op
    ident: int
    seconds: float = 0.0
    hz: int = 0
    what: str = ""
    which: str = ""

    def written(self) -> bytes:
        """Return the message."""
        fields = {"seconds": self.seconds, "hz": self.hz, "what": self.what, "which": self.which}
        return orjson.dumps({"op": self.op, "id": self.ident, **fields})


class Part(NamedTuple):
    """A part of the answer to an order. number: from 0."""

    ident: int
    number: int
    is_last: bool
    body: bytes


def receive(sock: socket.socket) -> bytes | None:
    """Take a message from a socket that does not block. None: there is none now; b"": the other end is gone."""
    try:
        return sock.recv(_MESSAGE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def read_order(message: bytes) -> Order:
    """Return the order of a message. Raises ValueError."""
    try:
        order = orjson.loads(message)
        op = order["op"]
        if op not in _OPS:
            raise ValueError("unknown order")
        seconds, hz = float(order.get("seconds", 0)), int(order.get("hz", 0))
        what, which = str(order.get("what", "")), str(order.get("which", ""))
        return Order(cast(Op, op), int(order["id"]), seconds, hz, what, which)
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError("not an order") from exc


def write_parts(ident: int, answer: bytes) -> list[bytes]:
    """Return the messages of an answer."""
    bodies = [answer[start : start + _PART_BYTES] for start in range(0, len(answer), _PART_BYTES)] or [b""]
    last = len(bodies) - 1
    return [
        orjson.dumps({"id": ident, "part": number, "last": number == last, "body": b64encode(body).decode()})
        for number, body in enumerate(bodies)
    ]


def read_part(message: bytes) -> Part:
    """Return the part that a message is. Raises ValueError."""
    try:
        part = orjson.loads(message)
        return Part(int(part["id"]), int(part["part"]), bool(part["last"]), b64decode(part["body"], validate=True))
    except (KeyError, TypeError, binascii.Error) as exc:
        raise ValueError("not a part of an answer") from exc
