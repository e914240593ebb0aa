"""The admin process's ends of the channels: asks all workers at once, and takes what they answer.

Knows: how long to wait, and which answer belongs to which order. Does not know: what is asked, HTTP, formats.

Each order has a number of its own; an answer with another one is to an order that was given up, and is dropped.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Final

from velox.build import UNSEEN_BY_PROFILES
from velox.profiling.messages import ANSWER_BYTES, Op, Order, read_part, receive
from velox.profiling.samples import CPU, HEAP, Measure, Profile, Samples, unpack

__all__ = ["ASK_S", "GRACE_S", "Workers", "worker_name"]

GRACE_S: Final = 2.0  # what a busy worker gets to answer after its time is over
# In which questions are answered that take no time of their own.
ASK_S: Final = 2.0
# A worker that counts its memory may be slower.
_HEAP_GRACE_S: Final = 15.0


def worker_name(slot: int) -> str:
    """Return how profiles name the worker of a slot."""
    return f"worker {slot}"


class Workers:
    """The workers of a gateway, by slot. socks: the admin's ends; made non-blocking when first asked."""

    def __init__(self, socks: Sequence[socket.socket]) -> None:
        self._socks: Final = socks
        self._channels: list[_Channel] | None = None
        self._n_orders = 0

    def __repr__(self) -> str:
        return f"<Workers {len(self._socks)}>"

    async def ask(self, what: str, which: str = "", timeout_s: float = ASK_S) -> list[bytes | None]:
        """Return the answers by slot; None where none came."""
        return await self._order("ask", timeout_s, what=what, which=which)

    async def profile(self, seconds: float, hz: int) -> Profile:
        """Profile the CPU time of all workers at the same time; takes `seconds`, or GRACE_S more where one is silent.

        A slot without an answer is named in `missing`. Cancelled: the workers are asked to stop.
        """
        started_ns = time.time_ns()
        answers = await self._order("profile", seconds + GRACE_S, seconds=seconds, hz=hz)
        return _profile(answers, started_ns, seconds, hz, CPU)

    async def heap(self, seconds: float) -> Profile:
        """Return what memory all workers have allocated in `seconds` and still have, as for profile()."""
        started_ns = time.time_ns()
        answers = await self._order("heap", seconds + _HEAP_GRACE_S, seconds=seconds)
        return _profile(answers, started_ns, seconds, 0, HEAP)

    async def _order(
        self, op: Op, timeout_s: float, *, seconds: float = 0.0, hz: int = 0, what: str = "", which: str = ""
    ) -> list[bytes | None]:
        if self._channels is None:
            loop = asyncio.get_running_loop()
            self._channels = [_Channel(sock, loop) for sock in self._socks]
        self._n_orders += 1
        # Of no order of an admin process before this one, either.
        order = Order(op, time.monotonic_ns() + self._n_orders, seconds, hz, what, which)
        return list(await asyncio.gather(*(channel.order(order, timeout_s) for channel in self._channels)))


class _Channel:
    """One worker's. It reads as long as it lives: an answer that nobody waits for must not fill the socket."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock: Final = sock
        self._loop: Final = loop
        self._waiting: Final[dict[int, _Answer]] = {}
        sock.setblocking(False)
        loop.add_reader(sock, self._on_readable)

    async def order(self, order: Order, timeout_s: float) -> bytes | None:
        """Return the answer; None: none came in time, or nobody is there."""
        if not self._send(order):
            return None
        answer = self._waiting[order.ident] = _Answer(self._loop.create_future())
        is_whole = False
        try:
            async with asyncio.timeout(timeout_s):
                whole = await answer.whole
            is_whole = True
            return whole
        except (TimeoutError, ValueError, OSError):
            return None
        finally:
            del self._waiting[order.ident]
            if not is_whole and order.op != "ask":
                self._send(Order("stop", order.ident))

    def _send(self, order: Order) -> bool:
        """Send without waiting. False: nobody reads there, or nobody has for long."""
        try:
            self._sock.send(order.written())
        except OSError:
            return False
        return True

    def _on_readable(self) -> None:
        message = receive(self._sock)
        if message is None:
            return
        if not message:
            self._loop.remove_reader(self._sock)
            for answer in self._waiting.values():
                answer.fail(ConnectionResetError("the worker's end is closed"))
            return
        try:
            part = read_part(message)
        except ValueError:
            return
        waiting = self._waiting.get(part.ident)
        if waiting is not None:
            waiting.came(part.number, part.body, is_last=part.is_last)


class _Answer:
    """One that comes in parts."""

    def __init__(self, whole: asyncio.Future[bytes]) -> None:
        self.whole: Final = whole
        self._packed = bytearray()
        self._n_parts = 0

    def came(self, number: int, body: bytes, *, is_last: bool) -> None:
        """Take the next part."""
        if number != self._n_parts or len(self._packed) + len(body) > ANSWER_BYTES:
            self.fail(ValueError("parts out of order or too many"))
            return
        self._n_parts += 1
        self._packed += body
        if is_last and not self.whole.done():
            self.whole.set_result(bytes(self._packed))

    def fail(self, error: Exception) -> None:
        """There will be no whole one."""
        if not self.whole.done():
            self.whole.set_exception(error)


def _profile(answers: Sequence[bytes | None], started_ns: int, seconds: float, hz: int, measure: Measure) -> Profile:
    taken: dict[str, Samples] = {}
    missing: list[str] = []
    for slot, packed in enumerate(answers):
        try:
            if packed is None:
                raise ValueError("no answer")
            taken[worker_name(slot)] = unpack(packed)
        except ValueError:
            missing.append(worker_name(slot))
    ns = round(seconds * 1e9)
    return Profile(taken, tuple(missing), started_ns, ns, hz, UNSEEN_BY_PROFILES, measure)
