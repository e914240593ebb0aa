"""The request that a client's connection is reading: its head, the room for its body, its body.

Knows: the decoder and the body budget, and that they agree. Does not know: sockets, timers, or what happens to a
request (ingress.py).
"""

from __future__ import annotations

from typing import Final

from velox.errors import Reason, VeloxError
from velox.net.client.body_budget import BodyBudget, BudgetWaiter
from velox.protocol.http1 import HeadReader, Http1Limits, RequestDecoder
from velox.types import RequestHead

__all__ = ["RequestReader"]


class RequestReader(RequestDecoder):
    """One request after the other: feed(), read_head(), reserve(), collect(), clear().

    head: the open request's, as its connection has noted it. body: what has come of it. waits: there is no room for it
    yet. Errors are VeloxErrors.

    It is a decoder and does not have one: a call that is only passed on is paid by each request.
    """

    __slots__ = ("_budget", "_held_bytes", "body", "head", "waits")

    def __init__(self, limits: Http1Limits, budget: BodyBudget, heads: HeadReader) -> None:
        super().__init__(limits, heads)
        self.head: RequestHead | None = None
        self.body: bytes | bytearray | None = None
        self._budget: Final = budget
        self._held_bytes = 0  # taken from the budget
        self.waits = False

    def __repr__(self) -> str:
        return f"<RequestReader buffered={self.buffered} held={self._held_bytes} waits={self.waits}>"

    def reserve(self, waiter: BudgetWaiter) -> bool:
        """Take room for a body of announced length. False: there is none yet, the waiter is called back."""
        n_bytes = self.head.content_length if self.head is not None else None
        if not n_bytes:
            return True
        if self._budget.take(waiter, n_bytes):
            self._held_bytes += n_bytes
            return True
        self.waits = True
        return False

    def grant(self, n_bytes: int) -> None:
        """Note that the budget gave the room that was waited for."""
        self.waits = False
        self._held_bytes += n_bytes

    def collect(self) -> bool:
        """Collect what is here of the body; True when it is whole. Raises VeloxError."""
        head = self.head
        if self.waits or head is None:
            return False
        piece = self.read_body()
        if head.chunked and piece:
            # Its length was not announced: what does not fit is refused, there is no way to wait in the middle.
            if not self._budget.take_now(len(piece)):
                message = "no memory for this request's body (VELOX_BODY_BUDGET)"
                raise VeloxError(Reason.OVERLOAD_MEMORY, message, retry_after_s=1.0, close=True)
            self._held_bytes += len(piece)
        if self.body_complete and self.body is None:
            # The usual case: the request came in one read, and its body is one slice of it.
            self.body = piece if piece or head.chunked else None
        elif piece:
            if not isinstance(self.body, bytearray):
                self.body = bytearray()
            self.body += piece
        return self.body_complete

    def leave_line(self, waiter: BudgetWaiter) -> None:
        """Wait for room no longer."""
        if self.waits:
            self.waits = False
            self._budget.forget(waiter)

    def release(self) -> None:
        """Give the body's room back to the budget."""
        if self._held_bytes:
            n_bytes, self._held_bytes = self._held_bytes, 0
            self._budget.give(n_bytes)

    def clear(self) -> None:
        """Forget the request; the next one may be read."""
        self.head = None
        self.body = None
