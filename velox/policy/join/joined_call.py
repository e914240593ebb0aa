"""One call of an upstream whose reply several clients get: the first one's (the leader) and its followers'.

    begin(), feed()    the reply, as the leader's client gets it
    fail()             it will not become whole
    join()             a follower; it reads with Follower.next(), each at its own pace, from the first byte on
    leader_left()      the leader's client is gone; the call goes on as long as somebody waits for it, or may come back

What came is held from its first byte as long as the call is open: a follower may still come. One that grows over its
bound is closed: nobody joins it any more, and only that is held which a follower has still to read. A follower that is
behind by more than the bound is cut off, so that it holds up nobody. Before that the upstream waits for those
that do read (n_unread()), as each writes less in a turn of the loop than may come in one.

Knows: bytes, readers and bounds. Does not know: a loop, requests, or which calls there are (table.py).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from velox.errors import Reason, VeloxError
from velox.heads import ReplyHead

__all__ = ["CALL_BYTES", "Follower", "FollowerAlone", "JoinedCall", "JoinedPiece", "Room"]

# What a call takes beside its bytes: its head, and itself.
CALL_BYTES: Final = 2048
# What a follower that is behind is given at once.
_MOST_AT_ONCE: Final = 64 * 1024


class JoinedPiece(NamedTuple):
    """More of a reply. head: with its first piece. end: it is whole."""

    head: ReplyHead | None
    data: bytes
    end: bool


class FollowerAlone(enum.Enum):
    """The call has failed, or is too long, before this follower had a byte of it: it asks by itself."""

    ALONE = enum.auto()


class Room:
    """The bytes that the replies of one partition's calls may take. take: False: there is no room for so many more."""

    __slots__ = ("give", "take")

    def __init__(self, take: Callable[[int], bool], give: Callable[[int], None]) -> None:
        self.take: Final = take
        self.give: Final = give


class JoinedCall:
    """One call. key: what stands for its request. most_bytes: that are held of its reply.

    may_retry: its client may come again with the same request, and that can be told from another equal one.
    n_joined: followers that there were.
    on_closed: called once, when nobody can join it any more. on_empty: called with False when the first follower comes,
    with True when the last one leaves, or the leader does and there is none. on_read: called when a follower has
    read, or another one is waited for.
    """

    __slots__ = (
        *("_data", "_followers", "_n_held", "_n_turns", "_room", "_start", "error", "has_leader", "head", "is_open"),
        *("is_sse", "is_whole", "key", "may_retry", "most_bytes", "n_joined", "on_closed", "on_empty", "on_read"),
    )

    def __init__(self, key: bytes, most_bytes: int, room: Room, *, may_retry: bool) -> None:
        self.key: Final = key
        self.most_bytes: Final = most_bytes
        self.may_retry: Final = may_retry
        self._room: Final = room
        self._n_held = 0  # of the room
        self._data = bytearray()
        self._start = 0  # where _data begins in the reply
        self._followers: dict[Follower, None] = {}
        self._n_turns = 0  # replies that were begun
        self.head: ReplyHead | None = None
        self.is_sse = False
        self.is_open = True
        self.is_whole = False
        self.has_leader = True
        self.n_joined = 0
        self.error: VeloxError | None = None  # it has failed
        self.on_closed: Callable[[], None] | None = None
        self.on_empty: Callable[[bool], None] | None = None
        self.on_read: Callable[[], None] | None = None

    def __repr__(self) -> str:
        state = "whole" if self.is_whole else "failed" if self.error is not None else "running"
        return f"<JoinedCall {state} {len(self._data)} bytes, {len(self._followers)} followers>"

    @property
    def n_followers(self) -> int:
        """Followers that are there."""
        return len(self._followers)

    @property
    def n_bytes(self) -> int:
        """Bytes that are held of its reply."""
        return len(self._data)

    def n_unread(self, *, is_read: bool) -> int:
        """Return how many bytes the upstream should wait for: as many as the slowest follower that reads has to read.

        is_read: somebody else reads it. Where nobody does: as many as the first of them lacks. Of a reply that is no
        stream followers get nothing before it is whole: to wait for them would be to wait for ever.
        """
        followers = self._followers
        if not followers or not (self.is_sse or self.is_whole):
            return 0
        reading = [each.at for each in followers if not each.is_stalled]
        end = self._start + len(self._data)
        if reading:
            return end - min(reading)
        return 0 if is_read else end - max(each.at for each in followers)

    @property
    def runs(self) -> bool:
        """True until its reply is whole, or has failed."""
        return not self.is_whole and self.error is None

    @property
    def reply(self) -> bytes | None:
        """Its whole body; None: it is not whole, or its begin is no longer held."""
        return bytes(self._data) if self.is_whole and self.is_open else None

    # -- the leader ---------------------------------------------------------------------------------

    def begin(self, head: ReplyHead, *, is_sse: bool) -> None:
        """The head of a reply has come. Of a second one, as an attempt before has broken off: that counts alone."""
        if not self.runs:
            return
        self._n_turns += 1
        self._drop(len(self._data))
        self._start = 0
        self.head, self.is_sse = head, is_sse
        if (head.content_length or 0) > self.most_bytes:
            self.close()
        self._tell()

    def feed(self, data: bytes, end: bool) -> None:
        """More of its body has come. end: that is all of it."""
        if not self.runs:
            return
        if data and (self.is_open or self._followers) and not self._hold(data):
            self._start += len(data)  # nobody reads it
        self.is_whole = end
        if end and not self.is_open and not self._followers:
            self._drop(len(self._data))
        self._tell()

    def fail(self, error: VeloxError) -> None:
        """It will not become whole. No effect on one that is."""
        if self.runs:
            self.error = error
            self.close()
            self._drop(len(self._data))
            self._tell()

    def leader_left(self) -> bool:
        """The leader's client is gone. Return True if the call goes on: somebody waits for it, or may come."""
        self.has_leader = False
        if self._followers:
            return True
        if not (self.is_open and self.may_retry):
            self.close()
            return False
        if self.on_empty is not None:
            self.on_empty(True)
        return True

    def close(self) -> None:
        """Nobody joins it any more."""
        if not self.is_open:
            return
        self.is_open = False
        on_closed, self.on_closed = self.on_closed, None
        if on_closed is not None:
            on_closed()
        self._trim()

    # -- followers ------------------------------------------------------------------------------------

    def join(self, on_progress: Callable[[], None]) -> Follower:
        """Follow it from its first byte. on_progress: called when next() may have more, and raises nothing."""
        follower = Follower(self, on_progress)
        is_first = not self._followers
        self._followers[follower] = None
        self.n_joined += 1
        if is_first and self.on_empty is not None:
            self.on_empty(False)
        return follower

    def leave(self, follower: Follower) -> None:
        """A follower is gone, or has all of it."""
        if self._followers.pop(follower, self) is self:
            return
        if not self.is_open:
            self._trim()
        if self.on_read is not None:
            self.on_read()
        if not self._followers and self.on_empty is not None:
            self.on_empty(True)

    def piece_for(self, follower: Follower) -> JoinedPiece | FollowerAlone | None:
        """See Follower.next()."""
        at = follower.at
        has_begun = follower.has_begun
        if follower.is_cut or self.error is not None or (has_begun and follower.turn != self._n_turns):
            if not has_begun:
                return FollowerAlone.ALONE
            raise self._why_cut(follower)
        if at < self._start:  # it is closed, and this one has not begun
            return FollowerAlone.ALONE
        if self.head is None:
            return None
        if not has_begun:
            if not self.is_sse and not self.is_whole:
                return None if self.is_open else FollowerAlone.ALONE
            if not self._data and not self.is_whole:
                return None
        n_left = self._start + len(self._data) - at
        if not n_left and not self.is_whole:
            return None
        first = at - self._start
        data = bytes(memoryview(self._data)[first : first + _MOST_AT_ONCE])
        follower.at = at + len(data)
        follower.has_begun, follower.turn = True, self._n_turns
        if self.on_read is not None:
            self.on_read()
        return JoinedPiece(None if has_begun else self.head, data, self.is_whole and len(data) == n_left)

    def _why_cut(self, follower: Follower) -> VeloxError:
        if follower.is_cut:
            message = (
                f"this client has read its reply so slowly that it was over {self.most_bytes} bytes behind the call"
                " that it had joined (VELOX_JOIN_CALL_BYTES), or that call's room was needed (VELOX_JOIN_BYTES)"
            )
            return VeloxError(Reason.CLIENT_SLOW, message)
        error = self.error
        if error is None:
            return VeloxError(Reason.UPSTREAM_TRUNCATED, "the call that this request had joined broke off")
        return VeloxError(error.reason, f"the call that this request had joined failed: {error.message}")

    # -- what is held ---------------------------------------------------------------------------------

    def _hold(self, data: bytes) -> bool:
        """Hold more, if somebody will read it. False: nobody will."""
        n_more = len(data)
        if len(self._data) + n_more > self.most_bytes or not self._take(n_more):
            self.close()
            while self._followers:
                self._trim()
                if len(self._data) + n_more <= self.most_bytes and self._take(n_more):
                    break
                self._cut_last()
            else:
                self._drop(len(self._data))
                return False
        self._data += data
        return True

    def _take(self, n_bytes: int) -> bool:
        if not self._room.take(n_bytes):
            return False
        self._n_held += n_bytes
        return True

    def _cut_last(self) -> None:
        """Cut off the followers that are furthest behind."""
        last = min(each.at for each in self._followers)
        for each in [each for each in self._followers if each.at == last]:
            del self._followers[each]
            each.is_cut = True
            each.on_progress()

    def _trim(self) -> None:
        """Hold only what somebody has still to read: nobody can join."""
        end = self._start + len(self._data)
        self._drop(min((each.at for each in self._followers), default=end) - self._start)

    def _drop(self, n_bytes: int) -> None:
        if n_bytes > 0:
            del self._data[:n_bytes]
            self._start += n_bytes
            self._n_held -= n_bytes
            self._room.give(n_bytes)

    def _tell(self) -> None:
        for each in tuple(self._followers):
            each.on_progress()


class Follower:
    """A client that gets the reply of a call. at: bytes that it has had. has_begun: it has had the head, too.

    turn: of the reply that it has begun with. is_stalled: its client takes no more now. is_cut: it was too slow.
    """

    __slots__ = ("_call", "at", "has_begun", "is_cut", "is_stalled", "on_progress", "turn")

    def __init__(self, call: JoinedCall, on_progress: Callable[[], None]) -> None:
        self._call: Final = call
        self.on_progress: Final = on_progress
        self.at = 0
        self.turn = 0
        self.has_begun = False
        self.is_cut = False
        self.is_stalled = False

    def __repr__(self) -> str:
        return f"<Follower at={self.at} of {self._call!r}>"

    def next(self) -> JoinedPiece | FollowerAlone | None:
        """Return more of the reply; None: there is no more now. Raises VeloxError for one that has begun and fails."""
        return self._call.piece_for(self)

    def stall(self, is_stalled: bool) -> None:
        """Its client takes no more now, or does again."""
        if is_stalled != self.is_stalled:
            self.is_stalled = is_stalled
            if self._call.on_read is not None:
                self._call.on_read()

    def leave(self) -> None:
        """Follow no longer. Only the first call counts."""
        self._call.leave(self)
