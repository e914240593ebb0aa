"""Tells the client what its call cost, where its request asks for it (`x-velox-cost: true`); or only learns it.

Knows: where a reply has room for it: in its head while the body is short enough to be held, behind the last event of a
stream. Does not know: what a call cost (calls.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import ReplyHead
from velox.net.client.body_budget import FREE_REPLY_BYTES, BodyBudget
from velox.protocol.sse import EventWatch

__all__ = ["CostFilter"]

_ERRORS_FROM: Final = 400
_TYPE: Final = b"content-type"
_JSON: Final = b"application/json"
# A longer body is not held for its head: pictures.
_MOST_HELD: Final = 4 * 1024 * 1024


class CostFilter(ReplyFilter):
    """Holds a body until its cost is known, or adds a comment to a stream.

    cost: asked once, after the last byte. bodies: the room for a body that is held; without room it passes untold.
    is_told: False: no field and no comment says it, and only JSON is held, as sound is heard while it comes.
    known: what it was, once the head of a body that was held goes on.
    """

    __slots__ = (
        "_bodies",
        "_cost",
        "_head",
        "_is_sse",
        "_is_told",
        "_n_held",
        "_n_taken",
        "_pieces",
        "_watch",
        "known",
    )
    order: ClassVar[int] = FilterOrder.COST

    def __init__(self, cost: Callable[[], bytes], bodies: BodyBudget, *, is_told: bool = True) -> None:
        super().__init__()
        self._is_told: Final = is_told
        self.known = b""
        self._bodies: Final = bodies
        self._n_taken = 0  # of the room
        self._cost: Final = cost
        self._head: ReplyHead | None = None
        self._pieces: list[bytes] = []
        self._n_held = 0
        self._is_sse = False
        self._watch: EventWatch | None = None  # of a stream of which something has come

    def __repr__(self) -> str:
        return f"<CostFilter holds {self._n_held} bytes>"

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead | None:
        """Hold the head of a body that is not too long."""
        self._is_sse, self._watch = is_sse, None
        self._pieces, self._n_held, self.released = [], 0, None
        self._give()
        self._head, self.known = None, b""
        if head.status >= _ERRORS_FROM:
            self.reads_body = False
        elif is_sse:
            self.reads_body = self._is_told and is_plain and head.content_length is None
        else:
            is_held = self._is_told or any(name == _TYPE and _JSON in value.lower() for name, value in head.headers)
            self.reads_body = is_held and (head.content_length or 0) <= _MOST_HELD
            self._head = head if self.reads_body else None
        return None if self._head is not None else head

    def feed(self, data: bytes, end: bool) -> bytes:
        """Return what goes on: nothing while a body is held, and a comment behind a stream."""
        if self._is_sse:
            if data:
                watch = self._watch = self._watch or EventWatch()
                watch.feed(data)
            # Inside an event the comment would end it.
            is_told = end and self._watch is not None and self._watch.between
            return b"%b: x-velox-cost %b\n\n" % (data, self._cost()) if is_told else data
        if self._head is None:
            return data
        self._pieces.append(data)
        self._n_held += len(data)
        if not end and self._has_room():
            return b""
        self._give()
        head, self._head = self._head, None
        if end:
            self.known = self._cost()
        if end and self._is_told:
            head = ReplyHead.of(head.status, [*head.headers, (b"x-velox-cost", self.known)], head.content_length)
        self.released = head
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def close(self) -> None:
        """Nothing more comes."""
        self._give()

    def _has_room(self) -> bool:
        """Say whether what is held may be held."""
        more = self._n_held - FREE_REPLY_BYTES - self._n_taken
        if self._n_held > _MOST_HELD or (more > 0 and not self._bodies.take_for_reply(more)):
            return False
        self._n_taken += max(0, more)
        return True

    def _give(self) -> None:
        n_bytes, self._n_taken = self._n_taken, 0
        if n_bytes:
            self._bodies.give_of_reply(n_bytes)
