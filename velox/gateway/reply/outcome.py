"""What came of an attempt: values that the exchange decides about, in one place (Exchange._after).

    Whole          the client has the whole reply
    Refused        an error came, and the client has seen no byte: it is passed on, or another attempt follows
    Broken         there is no reply, or not all of one
    Unsayable      nothing was sent: the API of this upstream can't say the request
    LocalAnswer    no upstream is asked: prepared.py

Knows: these values. Does not know: what follows one.
"""

from __future__ import annotations

from typing import Final

from velox.errors import VeloxError
from velox.heads import ReplyHead
from velox.net.upstream.interface import UpstreamFailure

__all__ = ["WHOLE", "Broken", "Refused", "Unsayable", "Whole"]


class Whole:
    """The client has all of the reply."""

    __slots__ = ()


WHOLE: Final = Whole()


class Refused:
    """An error that the client has seen nothing of. Its attempt is open until the exchange has decided.

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


class Broken:
    """No whole reply. failure: an UpstreamFailure, or why the attempt was ended from outside; without a traceback."""

    __slots__ = ("failure",)

    def __init__(self, failure: VeloxError) -> None:
        self.failure: Final = failure


class Unsayable:
    """The API of the upstream has no way to say the request. error: says what, in the words of the client's API."""

    __slots__ = ("error",)

    def __init__(self, error: VeloxError) -> None:
        self.error: Final = error
