"""What took how long on the way of one request, and how its client is told: `Server-Timing` (W3C Server Timing).

Knows: the moments of an exchange and of its attempts, and what follows from them. Does not know: who notes a moment
(request/timed_exchange.py), or who may be told (access/plan.py).

    accept      from the turn of the event loop in which the request's last bytes were read; whole milliseconds
    queue       in the queue
    parse       the look into its body
    limit       limits and budgets, with the wait for its turn in one
    route       the route, and the choice of a server, with the wait for one that has room
    retry       attempts before the last one, and the waits between them; only where there were any
    translate   what is sent, put into the API of the server
    connect     the wait for a connection, 0 on a warm one
    first-byte  from the request being sent to the first bytes of what the client gets
    total       from the whole request having come to the head of its reply

`translate`, `connect` and `first-byte` are of the last attempt. Behind a stream: `stream`, from its head to its end,
and `total` up to there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final

from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import Header, ReplyHead
from velox.protocol.sse import EventWatch

__all__ = ["AttemptMoments", "Moments", "TimingFilter"]

SERVER_TIMING: Final = b"server-timing"
_NS_PER_US: Final = 1000


class AttemptMoments:
    """Moments of one attempt, all monotonic, in nanoseconds; 0: it has not come to that.

    prepared_ns, connected_ns: what these steps took. sent_ns: when it was sent, or as good as.
    """

    __slots__ = ("began_ns", "connected_ns", "prepared_ns", "sent_ns")

    def __init__(self, began_ns: int) -> None:
        self.began_ns: Final = began_ns
        self.prepared_ns = 0
        self.connected_ns = 0
        self.sent_ns = began_ns


class Moments:
    """Those of one exchange. started_ns: when its request had come. accept_ns: since its last bytes were read."""

    __slots__ = ("_attempts", "accept_ns", "limit_ns", "parse_ns", "queue_ns", "route_ns", "started_ns")

    def __init__(self, started_ns: int, accept_ns: int) -> None:
        self.started_ns: Final = started_ns
        self.accept_ns: Final = accept_ns
        self.queue_ns = 0
        self.parse_ns = 0
        self.limit_ns = 0
        self.route_ns = 0
        self._attempts: list[AttemptMoments] = []

    def begin(self, began_ns: int) -> AttemptMoments:
        """Note an attempt that begins."""
        found = AttemptMoments(began_ns)
        self._attempts.append(found)
        return found

    @property
    def attempt(self) -> AttemptMoments | None:
        """The last one that has begun."""
        return self._attempts[-1] if self._attempts else None

    def upstream_ns(self, now_ns: int) -> int:
        """Return how long an upstream has had the request, all attempts together, with the waits between them."""
        ends = [*(each.began_ns for each in self._attempts[1:]), now_ns]
        return sum(max(end - each.sent_ns, 0) for each, end in zip(self._attempts, ends, strict=False))

    def field(self, now_ns: int, *, is_reply: bool) -> Header:
        """Return the header as it is now. is_reply: the first bytes of an upstream's reply have come."""
        steps = [
            (b"accept", self.accept_ns),
            (b"queue", self.queue_ns),
            (b"parse", self.parse_ns),
            (b"limit", self.limit_ns),
            (b"route", self.route_ns),
        ]
        attempt = self.attempt
        if attempt is not None:
            if len(self._attempts) > 1:
                steps.append((b"retry", attempt.began_ns - self._attempts[0].began_ns))
            steps.append((b"translate", attempt.prepared_ns))
            steps.append((b"connect", attempt.connected_ns))
            if is_reply:
                steps.append((b"first-byte", now_ns - attempt.sent_ns))
        steps.append((b"total", now_ns - self.started_ns))
        return SERVER_TIMING, b", ".join(_metric(name, ns) for name, ns in steps)

    def comment(self, head_ns: int, now_ns: int) -> bytes:
        """Return the comment behind a stream. head_ns: when its head went out."""
        steps = _metric(b"stream", now_ns - head_ns), _metric(b"total", now_ns - self.started_ns)
        return b": %b %b, %b\n\n" % (SERVER_TIMING, *steps)


def _metric(name: bytes, ns: int) -> bytes:
    """Write one; `dur` is in milliseconds (Server Timing §3), here with decimals to the microsecond."""
    return b"%b;dur=%b" % (name, f"{max(ns, 0) // _NS_PER_US / 1000:.3f}".encode())


class TimingFilter(ReplyFilter):
    """Adds the header to a reply, and a comment behind a stream where that is asked for.

    to_end: a stream is to have the comment.
    """

    __slots__ = ("_clock", "_head_ns", "_moments", "_to_end", "_watch")
    order: ClassVar[int] = FilterOrder.TIMING

    def __init__(self, moments: Moments, clock: Callable[[], int] = time.monotonic_ns, *, to_end: bool = False) -> None:
        super().__init__()
        self._moments: Final = moments
        self._head_ns = 0
        self._clock: Final = clock
        self._to_end: Final = to_end
        self._watch: EventWatch | None = None  # of a stream of which something has come

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Return the head with the field."""
        self._watch = None
        self.reads_body = self._to_end and is_sse and is_plain and head.content_length is None
        now_ns = self._head_ns = self._clock()
        field = self._moments.field(now_ns, is_reply=True)
        return ReplyHead.of(head.status, [*head.headers, field], head.content_length)

    def feed(self, data: bytes, end: bool) -> bytes:
        """Return what goes on: a comment behind the last event."""
        if data:
            watch = self._watch = self._watch or EventWatch()
            watch.feed(data)
        # Inside an event the comment would end it.
        is_told = end and self._watch is not None and self._watch.between
        return data + self._moments.comment(self._head_ns, self._clock()) if is_told else data
