"""A worker's end of the channel to the admin process: profiles and answers on request.

Knows: how orders are taken, and answers sent without waiting. Does not know: what an answer says, HTTP, supervisors.

The channel of a worker slot is one SOCK_SEQPACKET pair that outlives the slot's workers, so either end may
find messages of a time before its own: answers to orders that nobody waits for are dropped (workers.py). A worker's
newest order of a profile replaces the one before it: the admin process takes one at a time. Questions are answered at
once, also during a profile.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from velox.profiling.messages import Order, read_order, receive, write_parts
from velox.profiling.sampler import Sampler
from velox.profiling.samples import pack

if TYPE_CHECKING:  # loads tracemalloc, for the few gateways that are asked for a profile of their memory
    from velox.profiling.heap import HeapTracer

__all__ = ["ProfileAgent", "Question"]

# Answers a question; is given which of it is asked.
Question: TypeAlias = Callable[[str], bytes]


class ProfileAgent:
    """Takes orders on the worker's loop, in the main thread, and does nothing until one comes.

    questions: by what is asked; others get an empty answer. Owns no socket: close() leaves it open.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        questions: Mapping[str, Question] | None = None,
    ) -> None:
        self._sock = sock
        self._loop = loop
        self._questions: Final = questions or {}
        self._sampler = Sampler()
        self._heap: HeapTracer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._profile = 0  # the order that the timer ends
        self._outbox: deque[tuple[int, bytes]] = deque()

    def __repr__(self) -> str:
        return f"<ProfileAgent sampling={self._sampler.is_running} unsent={len(self._outbox)}>"

    def start(self) -> None:
        """Begin to listen for orders."""
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._on_readable)

    def close(self) -> None:
        """Stop listening, and sampling if that runs."""
        self._abandon()
        self._drop_unsent()
        self._loop.remove_reader(self._sock)

    def _on_readable(self) -> None:
        message = receive(self._sock)
        if message is None:
            return
        if not message:  # the admin end is gone, and with it who could ask
            self.close()
            return
        try:
            order = read_order(message)
        except ValueError:
            return  # not ours to judge: the admin process waits, then does without
        if order.op == "ask":
            question = self._questions.get(order.what)
            self._answer(order.ident, b"" if question is None else question(order.which))
            return
        self._abandon()
        if order.op == "profile":
            self._sampler.start(order.hz)
            self._end_in(order, self._finish)
        elif order.op == "heap":
            # Here, not above: see TYPE_CHECKING.
            from velox.profiling.heap import HeapTracer

            self._heap = HeapTracer()
            self._heap.start()
            self._end_in(order, self._finish_heap)

    def _end_in(self, order: Order, finish: Callable[[], None]) -> None:
        self._profile = order.ident
        self._timer = self._loop.call_later(order.seconds, finish)

    def _abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sampler.is_running:
            self._sampler.stop()
        if self._heap is not None:
            self._heap.stop()
            self._heap = None
        profile, self._profile = self._profile, 0
        if profile and self._outbox:
            kept = [each for each in self._outbox if each[0] != profile]
            self._drop_unsent()
            self._send_later(kept)

    def _finish(self) -> None:
        self._timer = None
        self._answer(self._profile, pack(self._sampler.stop()))

    def _finish_heap(self) -> None:
        self._timer = None
        heap, self._heap = self._heap, None
        if heap is not None:
            # What is counted was taken in this turn; to count it takes long.
            taken = heap.take()
            ident = self._profile
            counting = self._loop.run_in_executor(None, lambda: pack(taken()))
            counting.add_done_callback(lambda done: None if done.cancelled() else self._answer(ident, done.result()))

    def _answer(self, ident: int, answer: bytes) -> None:
        self._send_later([(ident, message) for message in write_parts(ident, answer)])

    def _send_later(self, messages: list[tuple[int, bytes]]) -> None:
        if messages and not self._outbox:
            self._loop.add_writer(self._sock, self._on_writable)
        self._outbox.extend(messages)

    def _drop_unsent(self) -> None:
        if self._outbox:
            self._outbox.clear()
            self._loop.remove_writer(self._sock)

    def _on_writable(self) -> None:
        try:
            self._sock.send(self._outbox[0][1])
        except BlockingIOError:
            return
        except OSError:
            self._abandon()
            self._drop_unsent()
            return
        self._outbox.popleft()
        if not self._outbox:
            self._loop.remove_writer(self._sock)
