"""Profiles of workers, taken by themselves and collected by the admin process.

Knows: the messages on the channel between the two, and how long to wait. Does not know: HTTP, formats,
supervisors.

The channel of a worker slot is one SOCK_SEQPACKET pair that outlives the slot's workers, so either end may
find messages of a time before its own. Each profile has an id, answers with another id are dropped, and a
worker's newest order replaces the one before it: the admin process is the only one that asks, and it asks
for one profile at a time.

    admin to worker   {"op": "profile", "id": 7, "seconds": 10, "hz": 99}   {"op": "stop", "id": 7}
    worker to admin   {"id": 7, "part": 0, "last": false, "body": "<base64 of a part of samples.pack()>"}
"""

from __future__ import annotations

import asyncio
import binascii
import socket
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from velox.build import UNSEEN_BY_PROFILES
from velox.profiling.sampler import Sampler
from velox.profiling.samples import Profile, Samples, pack, unpack

__all__ = ["GRACE_S", "ProfileAgent", "collect"]

GRACE_S: Final = 2.0  # what a busy worker gets to answer after its time is over
MESSAGE_BYTES: Final = 65_536  # no message is longer; 60 KB fit any socket buffer
_PART_BYTES: Final = 44_000  # 58.7 KB as base64
_PROFILE_BYTES: Final = 64 * 1024 * 1024  # far above 20,000 stacks of 128 frames


class _Order(NamedTuple):
    ident: int
    seconds: float
    hz: int


class _Part(NamedTuple):
    ident: int
    number: int
    is_last: bool
    body: bytes


class ProfileAgent:
    """A worker's end of the channel: samples on request, and answers.

    Runs on the worker's loop, in the main thread, and does nothing until an order comes. Owns no socket:
    close() leaves it open.
    """

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        self._loop = loop
        self._sampler = Sampler()
        self._timer: asyncio.TimerHandle | None = None
        self._outbox: deque[bytes] = deque()

    def __repr__(self) -> str:
        return f"<ProfileAgent sampling={self._sampler.is_running} unsent={len(self._outbox)}>"

    def start(self) -> None:
        """Begin to listen for orders."""
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._on_readable)

    def close(self) -> None:
        """Stop listening, and sampling if that runs."""
        self._abandon()
        self._loop.remove_reader(self._sock)

    def _on_readable(self) -> None:
        try:
            message = self._sock.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:  # the admin end is gone, and with it who could ask
            self.close()
            return
        try:
            order = _read_order(message)
        except ValueError:
            return  # not ours to judge: the admin process waits, then does without
        self._abandon()
        if order is not None:
            self._sampler.start(order.hz)
            self._timer = self._loop.call_later(order.seconds, self._finish, order.ident)

    def _abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sampler.is_running:
            self._sampler.stop()
        if self._outbox:
            self._outbox.clear()
            self._loop.remove_writer(self._sock)

    def _finish(self, ident: int) -> None:
        self._timer = None
        self._outbox.extend(_write_parts(ident, pack(self._sampler.stop())))
        self._loop.add_writer(self._sock, self._on_writable)

    def _on_writable(self) -> None:
        try:
            self._sock.send(self._outbox[0])
        except BlockingIOError:
            return
        except OSError:
            self._abandon()
            return
        self._outbox.popleft()
        if not self._outbox:
            self._loop.remove_writer(self._sock)


async def collect(socks: Sequence[socket.socket], seconds: float, hz: int) -> Profile:
    """Profile all workers at the same time; takes `seconds`, or GRACE_S more where one does not answer.

    socks: the admin's ends, by slot; made non-blocking. A slot without an answer is named in `missing`.
    Cancelled: the workers are asked to stop.
    """
    started_ns, ident = time.time_ns(), time.monotonic_ns()
    order = _Order(ident, seconds, hz)
    answers = await asyncio.gather(*(_ask(sock, order) for sock in socks))
    names = [f"worker {slot}" for slot in range(len(socks))]
    return Profile(
        workers={name: samples for name, samples in zip(names, answers, strict=True) if samples is not None},
        missing=tuple(name for name, samples in zip(names, answers, strict=True) if samples is None),
        started_ns=started_ns,
        duration_ns=round(seconds * 1e9),
        hz=hz,
        unseen=UNSEEN_BY_PROFILES,
    )


async def _ask(sock: socket.socket, order: _Order) -> Samples | None:
    sock.setblocking(False)
    if not _send(sock, {"op": "profile", "id": order.ident, "seconds": order.seconds, "hz": order.hz}):
        return None
    answered = False
    try:
        async with asyncio.timeout(order.seconds + GRACE_S):
            samples = await _answer(sock, order.ident)
        answered = True
        return samples
    except (TimeoutError, ValueError, OSError):
        return None
    finally:
        if not answered:
            _send(sock, {"op": "stop", "id": order.ident})


async def _answer(sock: socket.socket, ident: int) -> Samples:
    """Read the parts of answer `ident`. Raises ValueError for a broken one, OSError for a closed channel."""
    loop = asyncio.get_running_loop()
    packed = bytearray()
    expected = 0
    while True:
        message = await loop.sock_recv(sock, MESSAGE_BYTES)
        if not message:
            raise ConnectionResetError("the worker's end is closed")
        part = _read_part(message)
        if part.ident != ident:
            continue  # an answer to a profile that was given up
        if part.number != expected or len(packed) + len(part.body) > _PROFILE_BYTES:
            raise ValueError("parts out of order or too many")
        expected += 1
        packed += part.body
        if part.is_last:
            return unpack(packed)


def _send(sock: socket.socket, message: dict[str, str | int | float]) -> bool:
    """Send without waiting. False: nobody reads there, or nobody has for long."""
    try:
        sock.send(orjson.dumps(message))
    except OSError:
        return False
    return True


def _read_order(message: bytes) -> _Order | None:
    """Return the profile wanted, None for "stop". Raises ValueError for anything else."""
    try:
        order = orjson.loads(message)
        if order["op"] == "stop":
            return None
        if order["op"] != "profile":
            raise ValueError(f"unknown order {order['op']!r}")
        return _Order(int(order["id"]), float(order["seconds"]), int(order["hz"]))
    except (KeyError, TypeError) as exc:
        raise ValueError("not an order") from exc


def _write_parts(ident: int, packed: bytes) -> list[bytes]:
    bodies = [packed[start : start + _PART_BYTES] for start in range(0, len(packed), _PART_BYTES)]
    last = len(bodies) - 1
    return [
        orjson.dumps({"id": ident, "part": number, "last": number == last, "body": b64encode(body).decode()})
        for number, body in enumerate(bodies)
    ]


def _read_part(message: bytes) -> _Part:
    try:
        part = orjson.loads(message)
        return _Part(int(part["id"]), int(part["part"]), bool(part["last"]), b64decode(part["body"], validate=True))
    except (KeyError, TypeError, binascii.Error) as exc:
        raise ValueError("not a part of an answer") from exc
