"""What of the head of an upstream's reply its client gets: found once for all heads that are equal.

Knows: which fields say how the body is to be read. Does not know: which fields are dropped, and why (reply.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from velox.memo import Memo
from velox.types import Headers, ReplyHead

__all__ = ["PassedFields", "ReplyFields"]

_KEPT_HEADS: Final = 512
_SSE: Final = b"text/event-stream"
_Asked: TypeAlias = tuple[bytes, frozenset[bytes]]


class PassedFields(NamedTuple):
    """headers: what is left, which nobody changes. is_plain: the body is not compressed. is_dated: there is a Date."""

    headers: Headers
    is_sse: bool
    is_plain: bool
    is_dated: bool


class ReplyFields:
    """The heads of one worker's replies."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Final[Memo[_Asked, PassedFields]] = Memo(_KEPT_HEADS)

    def __repr__(self) -> str:
        return f"<ReplyFields {self._known!r}>"

    def passed(self, head: ReplyHead, dropped: frozenset[bytes]) -> PassedFields:
        """Return the fields of a head without those that are dropped."""
        if head.key is None:
            return _passed(head, dropped)
        asked = (head.key, dropped)
        return self._known.get(asked) or self._known.put(asked, _passed(head, dropped))


def _passed(head: ReplyHead, dropped: frozenset[bytes]) -> PassedFields:
    is_sse, is_plain, is_dated = False, True, False
    headers: Headers = []
    for header in head.headers:
        name = header[0]
        if name not in dropped:
            if name == b"content-type":
                is_sse = header[1].lower().startswith(_SSE)
            elif name == b"content-encoding":
                is_plain = header[1].lower() == b"identity"
            elif name == b"date":
                is_dated = True
            headers.append(header)
    return PassedFields(headers, is_sse, is_plain, is_dated)
