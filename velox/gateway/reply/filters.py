"""The filter chain: what reads or changes a reply between the upstream and the client.

    begin(head)       once, with the reply's head. Return the head that goes on; None: it is held back
    feed(data, end)   each read of the body. Return what goes on of it
    work(), go_on()   in place of more data, while a filter is behind: it has not returned all that it was fed
    close()           the reply is over, whole or not; always called, once

The filters of one reply stand in the order in which its bytes pass them, the upstream's side first: that of
FilterOrder (pipeline.py). A reply without filters passes as it came, and its lone chunks go straight to the client
(reply.py).

Knows: how a head and a body go from one filter to the next. Does not know: what a filter does, or the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from velox.errors import VeloxError
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import ReplyHead
from velox.protocol.reply_body import label_of

__all__ = ["FilterChain", "InnerError", "ReplyFilter", "insert_in_order"]


class InnerError(NamedTuple):
    """An error that stands inside a reply of another status. head: as if the error had come by itself."""

    head: ReplyHead
    body: bytes


class ReplyFilter:
    """One filter of one reply. The base class passes everything on.

    reads_body: False once begin() has returned: feed() need not be called. released: the head that begin() held back,
    set by feed() as soon as it may go on. is_over: what feed() returned is the end of the reply; what follows of the
    upstream's is not wanted. is_behind: set by feed() and go_on(): nothing may be fed before go_on() has returned the
    rest. has_work: work() comes before that, and may take long. pending_error: an error that may lead to another
    attempt: the filter is behind, and go_on() passes the error on. Of one chain only one filter may be behind. holds:
    the client has been given whole events only, though the upstream is inside one. only_reads: the class passes
    everything on, and of a head looks only at its status and form.
    """

    __slots__ = ("has_work", "is_behind", "is_over", "pending_error", "reads_body", "released")
    order: ClassVar[int] = FilterOrder.HEADERS
    only_reads: ClassVar[bool] = False

    def __init__(self) -> None:
        self.reads_body = True
        self.released: ReplyHead | None = None
        self.is_over = False
        self.is_behind = False
        self.has_work = False
        self.pending_error: InnerError | None = None

    @property
    def holds(self) -> bool:
        return False

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Take the head; return the one that goes on, or None to hold it back. is_plain: the body is not compressed."""
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Take what came of the body; return what goes on. Raises UpstreamFailure: the reply can't be completed."""
        return data

    def work(self) -> None:
        """Do what would hold the loop, in a thread: meanwhile only cut() and close() are called. Raises nothing."""

    def go_on(self) -> bytes:
        """Return more of what goes on, once there is no work. Raises as feed()."""
        raise AssertionError("asked of a filter that is behind")

    def cut(self, error: VeloxError) -> bytes | None:
        """Return what tells the client that a reply which has begun is not whole; None: as its dialect usually does."""
        return None

    def begins_stream(self) -> bool:
        """Let the head go that is held back, and what came so far with the next feed(), if it is an event stream's.

        Asked where the client is to wait no longer. Return False if it stays held.
        """
        return False

    def close(self) -> None:
        """Nothing more comes."""


def insert_in_order(filters: tuple[ReplyFilter, ...], added: ReplyFilter) -> tuple[ReplyFilter, ...]:
    """Return the filters with one more, at its position; behind those of the same order."""
    n = len(filters)
    while n and filters[n - 1].order > added.order:
        n -= 1
    return (*filters[:n], added, *filters[n:])


class FilterChain:
    """The filters of one reply. is_sse, is_plain: of the upstream's body.

    reads_body: one of them needs the body. is_over: the reply has ended, whatever the upstream still sends. is_behind:
    one of them is: what follows waits until go_on() has returned all.
    """

    __slots__ = (
        *("_behind_at", "_ends", "_filters", "_held_at", "_is_plain", "_is_sse"),
        *("head", "is_behind", "is_over", "reads_body"),
    )

    def __init__(self, filters: Sequence[ReplyFilter], *, is_sse: bool, is_plain: bool) -> None:
        self._filters: Final = filters
        self._is_sse = is_sse  # of what the next filter gets: a translation changes it
        self._is_plain = is_plain
        self._held_at = 0  # the filter that holds the head back, while `head` is None
        self._behind_at = 0  # the filter that is behind
        self._ends = False  # that had been fed the end
        self.head: ReplyHead | None = None
        self.reads_body = True
        self.is_over = False
        self.is_behind = False

    def begin(self, head: ReplyHead, at: int = 0) -> ReplyHead | None:
        """Pass the head through the filters from `at` on; None: one of them holds it back."""
        for place in range(at, len(self._filters)):
            changed = self._filters[place].begin(head, is_sse=self._is_sse, is_plain=self._is_plain)
            if changed is None:
                self._held_at = place
                return None
            head = changed
        self.head = head
        self.reads_body = False
        for each in self._filters:
            if each.reads_body:
                self.reads_body = True
                break
        return head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Pass a part of the body through the filters. When `head` is set by it, that goes to the client first."""
        return self._pass(0, data, end)

    @property
    def has_work(self) -> bool:
        """True where work() comes before go_on()."""
        return self.is_behind and self._filters[self._behind_at].has_work

    @property
    def pending_error(self) -> InnerError | None:
        """The pending error of the filter that is behind; None: there is none."""
        return self._filters[self._behind_at].pending_error if self.is_behind else None

    def work(self) -> None:
        """Do what the filter that is behind has to do. As ReplyFilter.work()."""
        self._filters[self._behind_at].work()

    def go_on(self) -> bytes:
        """Do as feed() with more of what the filter that is behind was fed; `is_behind` says whether that was all."""
        return self._pass(self._behind_at, b"", self._ends, goes_on=True)

    def _pass(self, at: int, data: bytes, end: bool, *, goes_on: bool = False) -> bytes:
        filters = self._filters
        self.is_behind = False
        for place in range(at, len(filters)):
            each = filters[place]
            if goes_on:
                goes_on = False
                data = each.go_on()
            elif each.reads_body:
                data = each.feed(data, end)
            if each.is_behind:
                self.is_behind, self._behind_at, self._ends = True, place, end
                end = False
            if each.is_over:
                end = self.is_over = True
            if self.head is None and place == self._held_at:
                if each.released is None:
                    return b""
                self._is_sse, self._is_plain = label_of(each.released.headers)
                if self.begin(each.released, place + 1) is None and self._held_at == place:
                    return b""
        return data if self.head is not None else b""

    def begins_stream(self) -> bool:
        """Have the filter that holds the head let it go; False if none does, or it stays held."""
        return self.head is None and self._filters[self._held_at].begins_stream()

    @property
    def is_sse(self) -> bool:
        """True when the client gets an event stream."""
        return self._is_sse

    @property
    def holds(self) -> bool:
        """True when the client has been given whole events only, though the upstream is inside one."""
        return any(each.holds for each in self._filters)

    def cut(self, error: VeloxError) -> bytes | None:
        """Return how the client learns that its reply is not whole; None: as its dialect usually does."""
        return next((last for each in self._filters if (last := each.cut(error)) is not None), None)

    def close(self) -> None:
        """Nothing more comes."""
        for each in self._filters:
            each.close()
