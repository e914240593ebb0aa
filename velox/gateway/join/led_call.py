"""The leader's side of a joined call: its request goes to the upstream, and its reply to all that have joined it.

    filter             hands the reply to the followers as it passes to the leader's client
    client_left()      whether the call goes on without that
    runs_ahead()       whether it goes on though that reads slowly
    ended()            the leader's exchange is over: is the answer kept for a retry?

Knows: the times that a call goes on with nobody there, and an answer is kept. Does not know: what an exchange is, but
by what it gives to lead().
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, Final

from velox.errors import Reason, VeloxError
from velox.gateway.join.absent_client import AbsentClient
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.headers import REQUEST_ID
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import ReplyHead
from velox.net.client.body_budget import BodyBudget
from velox.policy.join.joined_call import JoinedCall

__all__ = ["JoinFilter", "LedCall"]

_LEADER: Final = (b"x-velox-join", b"leader")
_ERRORS_FROM: Final = 400
# Parts of the bound: of what is to be read, from which on the upstream waits, and below which it goes on.
_HELD_FROM: Final = 4
_HELD_TO: Final = 8


class LedCall:
    """A call that its leader has begun.

    keep_s: how long it goes on with nobody there, where its client may retry, and its answer is kept then. keeps: asked
    at the end of a whole reply whether that may be given to a retry; keeps it.
    """

    __slots__ = (
        *("_absent", "_is_held", "_keep_s", "_keeps", "_loop", "_n_ahead", "_on_behind", "_on_deserted", "_set_pace"),
        *("_looks", "_timer", "call", "n_before"),
    )

    def __init__(
        self, call: JoinedCall, keep_s: float, loop: asyncio.AbstractEventLoop, keeps: Callable[[JoinedCall], bool]
    ) -> None:
        self.call: Final = call
        self._keep_s: Final = keep_s
        self._loop: Final = loop
        self._keeps: Callable[[JoinedCall], bool] | None = keeps
        self._timer: asyncio.TimerHandle | None = None  # while nobody is there
        self._n_ahead = -1  # of the reply since the leader's client reads slowly; below 0: it does not
        self._on_deserted: Callable[[], None] | None = None
        self._on_behind: Callable[[], None] | None = None
        self._set_pace: Callable[[bool], None] | None = None
        self.n_before = 0  # bytes of the reply that its client has had
        self._is_held = False  # the upstream waits for followers
        self._looks = False  # soon whether it still has to
        self._absent: AbsentClient | None = None
        call.on_empty = self._on_empty

    def __repr__(self) -> str:
        return f"<LedCall {self.call!r}>"

    @property
    def has_followers(self) -> bool:
        """True while others get its reply."""
        return self.call.n_followers > 0

    @property
    def may_retry(self) -> bool:
        """True where a retry of its client would join it."""
        return self.call.may_retry and self.call.is_open

    def lead(
        self, on_deserted: Callable[[], None], on_behind: Callable[[], None], set_pace: Callable[[bool], None]
    ) -> ReplyFilter:
        """Return the filter of its reply.

        on_deserted: called when its client has left, and nobody waits for it any more. on_behind: when its client is so
        far behind that others would have to wait. set_pace: with True: its client's pace holds up the upstream again,
        with False: no more.
        """
        self._on_deserted, self._on_behind, self._set_pace = on_deserted, on_behind, set_pace
        return JoinFilter(self)

    def client_left(self) -> bool:
        """Return True if the call goes on."""
        self._n_ahead = -1
        return self.call.leader_left()

    def absent_client(self, address: str, n_before: int, bodies: BodyBudget, n_held: int) -> AbsentClient:
        """Return what stands in for its client. As in AbsentClient."""
        self.n_before = n_before
        absent = self._absent = AbsentClient(address, bodies, n_held)
        absent.is_write_paused = self._is_held
        return absent

    def keep_pace(self) -> None:
        """The reply goes on to another client: the upstream still waits for followers, if it did."""
        if self._is_held:
            self._hold(True)

    def runs_ahead(self) -> bool:
        """The leader's client reads slowly. Return True if that holds up nobody, as others read, too."""
        self._n_ahead = 0
        return self.has_followers

    def caught_up(self) -> bool:
        """The leader's client has read what there was. Return True if the upstream may go on."""
        self._n_ahead = -1
        return not self._is_held

    def passes(self, data: bytes, end: bool) -> None:
        """More of the reply has come."""
        call = self.call
        call.feed(data, end)
        if end or not self.has_followers:
            return
        if self._n_ahead >= 0:
            self._n_ahead += len(data)
            if self._n_ahead > call.most_bytes and self._on_behind is not None:
                self._loop.call_soon(self._on_behind)
        if not self._is_held and call.n_bytes > call.most_bytes // _HELD_FROM and self._lags(_HELD_FROM):
            call.on_read = self._on_read
            self._hold(True)

    def _lags(self, part: int) -> bool:
        """Say whether more than a part of the bound is to be read before more may come."""
        is_read = self.call.has_leader and self._n_ahead < 0
        return self.call.n_unread(is_read=is_read) > self.call.most_bytes // part

    def ended(self, error: VeloxError | None) -> None:
        """The leader's exchange is over. error: that it has ended in."""
        self._stop_timer()
        call, keeps = self.call, self._keeps
        self._on_deserted = self._on_behind = self._set_pace = self._keeps = None
        call.on_empty = call.on_read = self._absent = None
        if call.runs:
            call.fail(error or VeloxError(Reason.UPSTREAM_TRUNCATED, "its reply was not whole"))
        elif call.is_open and (keeps is None or not keeps(call)):
            call.close()

    def _hold(self, is_held: bool) -> None:
        self._is_held = is_held
        if self._absent is not None:
            self._absent.is_write_paused = is_held
        if self._set_pace is not None:
            self._set_pace(is_held)

    def _on_read(self) -> None:
        if not self._looks:  # once a turn: there may be thousands of followers
            self._looks = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        if self._is_held and not self._lags(_HELD_TO):
            self.call.on_read = None
            self._hold(False)

    def _on_empty(self, is_empty: bool) -> None:
        if is_empty and self._is_held:
            self._hold(False)
        if self.call.has_leader:
            if self._n_ahead >= 0 and self._set_pace is not None:
                self._n_ahead = 0
                self._set_pace(is_empty)
            return
        if not is_empty:
            self._stop_timer()
        elif not self.call.runs:
            return
        elif self.call.may_retry and self.call.is_open:
            self._timer = self._loop.call_later(self._keep_s, self._desert)
        else:
            self._desert()

    def _desert(self) -> None:
        self._timer = None
        self.call.close()
        if self._on_deserted is not None:
            self._on_deserted()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class JoinFilter(ReplyFilter):
    """Hands a reply to those that have joined its call, as its own client gets it."""

    __slots__ = ("_led",)
    order: ClassVar[int] = FilterOrder.JOIN

    def __init__(self, led: LedCall) -> None:
        super().__init__()
        self._led: Final = led

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Of an error nobody gets anything but the leader: others ask by themselves."""
        call = self._led.call
        if head.status >= _ERRORS_FROM:
            self.reads_body = False
            message = f"the upstream answered it with status {head.status}"
            call.fail(VeloxError(Reason.UPSTREAM_STATUS, message, status=head.status))
            return head
        # An id that the leader's client has given is its own.
        headers = [field for field in head.headers if field[0] != REQUEST_ID]
        call.begin(ReplyHead.of(head.status, headers, head.content_length), is_sse=is_sse)
        return ReplyHead.of(head.status, [*head.headers, _LEADER], head.content_length)

    def feed(self, data: bytes, end: bool) -> bytes:
        """Pass it on."""
        self._led.passes(data, end)
        return data
