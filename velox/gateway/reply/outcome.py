"""What came of an attempt: values that the exchange decides about, in one place (Exchange._decide_next).

    Complete       the client has the complete reply
    ErrorReply     an error came, and the client has seen no byte of it: it is passed on, or another attempt follows
    Failed         there is no reply, or only a part of one
    Unsupported    nothing was sent: the API of this upstream has no way to express the request
    LocalAnswer    no upstream is asked: prepared.py

Knows: these values. Does not know: what follows one.
"""

from __future__ import annotations

from typing import Final

from velox.errors import VeloxError
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure

__all__ = ["COMPLETE", "Complete", "ErrorReply", "Failed", "Unsupported"]


class Complete:
    """The client has the complete reply."""

    __slots__ = ()


COMPLETE: Final = Complete()


class ErrorReply:
    """An error of which the client has seen no byte. Its attempt is open until the exchange has decided.

    head: of the error; where it stood inside a reply of another status, the one that it would have had. body: the
    whole error; None: its status alone tells what follows, it is too long for an error, or has not come whole in time.
    inside: it stood in a reply of another status. failure: what has cut it.
    """

    __slots__ = ("body", "failure", "head", "inside")

    def __init__(
        self, head: ReplyHead, body: bytes | None, *, inside: bool = False, failure: UpstreamFailure | None = None
    ) -> None:
        self.head: Final = head
        self.body: Final = body
        self.inside: Final = inside
        self.failure: Final = failure

    @property
    def message(self) -> str:
        """What the log says of it."""
        where = ", inside a reply of another status" if self.inside else ""
        return f"the upstream answered with {self.head.status}{where}"


class Failed:
    """No complete reply. failure: an UpstreamFailure, or why it was ended from outside; without a traceback."""

    __slots__ = ("failure",)

    def __init__(self, failure: VeloxError) -> None:
        self.failure: Final = failure


class Unsupported:
    """The API of the upstream has no way to express the request. error: names what, in terms of the client's API."""

    __slots__ = ("error",)

    def __init__(self, error: VeloxError) -> None:
        self.error: Final = error
