"""Both ends of a connection between two workers, over which one follows a call that the other one has.

    LinkServer   at the worker that has the call: one follower of it, whose client is the other worker
    LinkClient   at the other one: feeds a call of its own, which its clients join, with what comes

Knows: which frame follows which, and who waits for whom. Does not know: how a worker is found (peers.py), or requests.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from velox.errors import Reason, VeloxError
from velox.policy.join.frames import (
    QUESTION_BYTES,
    FrameKind,
    FrameReader,
    Question,
    frame_bytes,
    head_bytes,
    question_bytes,
    read_head,
    read_question,
)
from velox.policy.join.joined_call import Follower, FollowerAlone, JoinedCall

__all__ = ["LinkClient", "LinkServer"]

_REASONS: Final = {reason.code: reason for reason in Reason}
# Who has asked joins at once; or it has left, and nobody else came.
_UNUSED_S: Final = 1.0
# Who connects asks at once.
_ASKED_S: Final = 1.0
# What is held of a reply that nobody has joined yet.
_MOST_WAITING: Final = 64 * 1024
# As in led_call.py: of what is to be read, from which on the other worker waits.
_HELD_FROM: Final = 4


class LinkServer(asyncio.Protocol):
    """find: returns the call that a question is for, None where there is none. Raises VeloxError for a mismatch.

    trusts: says whether the process at the other end may ask. follows: somebody at the other end gets a reply, until
    the connection is lost. on_end: called once it is.
    """

    def __init__(
        self,
        find: Callable[[Question], JoinedCall | None],
        trusts: Callable[[socket.socket], bool],
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[LinkServer], None],
    ) -> None:
        self._find: Final = find
        self._trusts: Final = trusts
        self._loop: Final = loop
        self._timer: asyncio.TimerHandle | None = None  # until it has asked
        self.follows = False
        self._on_end: Final = on_end
        self._asked = bytearray()
        self._transport: asyncio.Transport | None = None
        self._follower: Follower | None = None
        self._call: JoinedCall | None = None
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        if self._trusts(transport.get_extra_info("socket")):
            self._transport = transport  # type: ignore[assignment]  # uvloop's have no base class
            self._timer = self._loop.call_later(_ASKED_S, self.close)
        else:
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or self._follower is not None:
            return
        self._asked += data
        if len(self._asked) < QUESTION_BYTES:
            return
        self._stop_timer()
        question = read_question(bytes(self._asked[:QUESTION_BYTES]))
        kind = FrameKind.NONE
        call = None
        if question is not None:
            try:
                call = self._find(question)
            except VeloxError:
                kind = FrameKind.MISMATCH
        if call is None:
            transport.write(frame_bytes(kind))
            transport.close()
            return
        transport.write(frame_bytes(FrameKind.JOINED))
        self.follows = True
        self._call = call
        self._follower = call.join(self._pump)
        self._pump()

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._follower is not None:
            self._follower.stall(True)

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._follower is not None:
            self._follower.stall(False)
            self._pump()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self.follows = False
        self._stop_timer()
        self._leave()
        self._on_end(self)

    def close(self) -> None:
        """The worker stops."""
        if self._transport is not None:
            self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pump(self) -> None:
        """Send what there is."""
        transport, follower, call = self._transport, self._follower, self._call
        if transport is None or follower is None or call is None:
            return
        while not self._is_paused or follower.is_cut:
            try:
                piece = follower.next()
            except VeloxError as error:
                self._end(frame_bytes(FrameKind.FAILED, error.reason.code.encode()))
                return
            if piece is None:
                return
            if piece is FollowerAlone.ALONE:
                self._end(frame_bytes(FrameKind.ALONE))
                return
            if piece.head is not None:
                transport.write(head_bytes(piece.head, is_sse=call.is_sse))
            if piece.data:
                transport.write(frame_bytes(FrameKind.DATA, piece.data))
            if piece.end:
                self._end(frame_bytes(FrameKind.END))
                return

    def _end(self, last: bytes) -> None:
        self._leave()
        if self._transport is not None:
            self._transport.write(last)
            self._transport.close()

    def _leave(self) -> None:
        follower, self._follower, self._call = self._follower, None, None
        if follower is not None:
            follower.leave()


class LinkClient(asyncio.Protocol):
    """question: what is asked. begin: returns the call that is fed, None: there is no room for it.

    answered: resolves with what the other worker said: JOINED, NONE or MISMATCH; NONE also where it is gone.
    """

    def __init__(
        self,
        question: Question,
        begin: Callable[[], JoinedCall | None],
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[LinkClient], None],
    ) -> None:
        self._question: Final = question
        self._begin: Callable[[], JoinedCall | None] | None = begin
        self._loop: Final = loop
        self._on_end: Final = on_end
        self._reader: Final = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._call: JoinedCall | None = None
        self._is_held = False
        self._is_full = False  # of what nobody has joined yet
        self._is_closed = False
        self.is_over = False  # the connection is lost
        self._waits = False  # for the first one to join
        self._is_lost = False  # while it waits
        self._timer: asyncio.TimerHandle | None = None  # until somebody must have joined
        self.answered: Final[asyncio.Future[FrameKind]] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's have no base class
        assert self._transport is not None
        if self._is_closed:
            self._transport.abort()
            return
        self._transport.write(question_bytes(self._question))

    @property
    def follows(self) -> bool:
        """True while there is a call that it feeds."""
        return self._call is not None

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._read()
        if self._waits and not self._is_full and self._reader.n_bytes > _MOST_WAITING and self._transport is not None:
            self._is_full = True
            self._transport.pause_reading()

    def _read(self) -> None:
        """Take all that has come, once somebody has joined."""
        try:
            while not self._waits and (frame := self._reader.next()) is not None:
                self._take(frame.kind, frame.data)
        except ValueError:
            self.close()
        if self._is_full and not self._waits:
            self._is_full = False
            if not self._is_held:
                self._resume()
        if self._is_lost and not self._waits:
            self._is_lost = False
            self._lose()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self.is_over = True
        if self._waits:  # all may have come already, and is read when somebody has joined
            self._is_lost = True
            return
        self._lose()

    def _lose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._answer(FrameKind.NONE)
        self._fail(VeloxError(Reason.UPSTREAM_RESET, "the worker that had it has gone"))
        self._on_end(self)

    def close(self) -> None:
        """Nobody follows it any more, or waits for its answer, or the worker stops."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def _answer(self, kind: FrameKind) -> None:
        if not self.answered.done():
            self.answered.set_result(kind)

    def _take(self, kind: FrameKind, data: bytes) -> None:
        call = self._call
        if call is None:
            begin, self._begin = self._begin, None
            if kind is FrameKind.JOINED and begin is not None and not self.answered.done():
                call = self._call = begin()
                if call is not None:
                    call.has_leader = False
                    call.on_empty = self._on_empty
                    self._timer = self._loop.call_later(_UNUSED_S, self._close_if_unused)
                    self._waits = True
                    self._answer(kind)
                    return
                kind = FrameKind.NONE
            self._answer(kind)
            self.close()
        elif kind is FrameKind.HEAD:
            head, is_sse = read_head(data)
            call.begin(head, is_sse=is_sse)
        elif kind is FrameKind.DATA:
            call.feed(data, False)
            self._hold_if_full(call)
        elif kind is FrameKind.END:
            self._call = call.on_empty = call.on_read = None
            call.feed(b"", True)
            # It is kept where it was made. Who has asked at the same time finds it here.
            timer = self._loop.call_later(_UNUSED_S, call.close)
            call.on_closed = partial(_then, timer.cancel, call.on_closed)
            if not call.is_open:
                timer.cancel()
        elif kind is FrameKind.ALONE:
            self._fail(VeloxError(Reason.UPSTREAM_RESET, "the worker that had it has no more of it"))
        else:
            reason = _REASONS.get(data.decode("ascii", "replace"), Reason.UPSTREAM_TRUNCATED)
            self._fail(VeloxError(reason, "it broke off"))

    def _fail(self, error: VeloxError) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.on_empty = call.on_read = None
            call.fail(error)

    def _hold_if_full(self, call: JoinedCall) -> None:
        if not self._is_held and self._lags(call) and self._transport is not None:
            self._is_held = True
            call.on_read = self._look
            if not self._is_full:
                self._transport.pause_reading()

    def _look(self) -> None:
        call = self._call
        if self._is_held and (call is None or not self._lags(call)):
            self._is_held = False
            if call is not None:
                call.on_read = None
            self._resume()

    def _resume(self) -> None:
        if self._transport is not None and not self._is_closed:
            self._transport.resume_reading()

    def _lags(self, call: JoinedCall) -> bool:
        part = call.most_bytes // _HELD_FROM
        return call.n_bytes > part and call.n_unread(is_read=False) > part

    def _close_if_unused(self) -> None:
        self._timer = None
        if self._call is not None and not self._call.n_joined:
            self._waits = False
            self._on_empty(True)
            if self._is_lost:
                self._lose()

    def _on_empty(self, is_empty: bool) -> None:
        if not is_empty:
            if self._waits:
                self._waits = False
                self._loop.call_soon(self._read)
        else:
            call, self._call = self._call, None
            if call is not None:
                call.on_empty = call.on_read = None
                call.fail(VeloxError(Reason.CLIENT_CLOSED, "nobody follows it any more"))
            self.close()


def _then(first: Callable[[], None], then: Callable[[], None] | None) -> None:
    first()
    if then is not None:
        then()
