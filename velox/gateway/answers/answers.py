"""Answers in Responses of models whose provider keeps none: kept here for a while, as OpenAI does (`store`).

    expand()        what a request refers to becomes a part of it, before it is sent anywhere
    kept.keeper()   has the answer of a translated request kept, unless that says `store: false`
    serve()         GET, DELETE and the rest of /responses/ID, for an answer that is kept here

Knows: which requests may be for such an answer. Does not know: how one is found (kept_answers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from velox.errors import Reason, VeloxError
from velox.gateway.answers.values import AnswerPlace, ExpandedRequest
from velox.gateway.reply.filters import ReplyFilter
from velox.gateway.reply.pipeline import FilterOrder
from velox.heads import Headers, ReplyHead, RequestHead
from velox.net.client.body_budget import BodyBudget
from velox.types import ApiKind, Caller

if TYPE_CHECKING:  # loads a dialect, which most gateways don't need
    from velox.gateway.answers.kept_answers import KeptAnswers

__all__ = [
    "REFERRING",
    "Answers",
    "BodyBudgetRelease",
    "is_of_answer",
    "names_own",
    "unknown_object",
]

# Whose requests may refer to what is kept.
REFERRING: Final = frozenset({ApiKind.RESPONSES, ApiKind.COMPACT, ApiKind.COUNT_RESPONSES})
_HEADERS: Final = ((b"content-type", b"application/json"),)
_STARTS: Final = (b"responses/resp_", b"conversations/conv_vx")
_CONVERSATIONS_PATH: Final = b"/conversations"
_OWN: Final = ("resp_vx", "conv_vx")  # no provider's id begins so


_CONVERSATIONS: Final = AnswerPlace("", "")


class Answers:
    """Of one worker. make: of what keeps them, once it is needed. is_used: tells whether anybody has kept any."""

    def __init__(self, make: Callable[[], KeptAnswers], is_used: Callable[[], bool]) -> None:
        self._make: Final = make
        self._is_used: Final = is_used
        self._made: KeptAnswers | None = None

    def __repr__(self) -> str:
        return f"<Answers {self._made!r}>"

    @property
    def kept(self) -> KeptAnswers:
        """What keeps them, made with the first question."""
        if self._made is None:
            self._made = self._make()
        return self._made

    async def expand(self, body: bytes | bytearray, caller: Caller) -> ExpandedRequest | None:
        """Return a request with what it refers to; None: it refers to nothing that is kept. Raises VeloxError."""
        return await self.kept.expand(body, caller) if self._is_used() else None

    async def serve(
        self, head: RequestHead, body: bytes | bytearray, caller: Caller, *, makes: Callable[[], str] | None = None
    ) -> tuple[int, Headers, bytes] | None:
        """Answer a request for what is kept here; None: it is none of ours. Raises VeloxError.

        makes: gives the names of conversations; None: they are a provider's.
        """
        place = _place(head.path)
        if place is None:
            return None
        is_new = makes is not None and place == _CONVERSATIONS and head.method == b"POST"
        is_ours = place.answer_id.startswith(_OWN)
        told = None
        if is_new or self._is_used():
            told = await self.kept.serve(place, head, body, caller, makes if is_new or is_ours else None)
        return None if told is None else (200, list(_HEADERS), told)


class BodyBudgetRelease(ReplyFilter):
    """Gives back to the body budget, at the end of the reply, what inserted answers have taken."""

    __slots__ = ("_bodies", "_n_bytes")
    order: ClassVar[int] = FilterOrder.BODY_BUDGET

    def __init__(self, bodies: BodyBudget, n_bytes: int) -> None:
        super().__init__()
        self._bodies: Final = bodies
        self._n_bytes = n_bytes

    def begin(self, head: ReplyHead, *, is_sse: bool, is_plain: bool) -> ReplyHead:
        """Pass the head on; the body does not matter."""
        self.reads_body = False
        return head

    def close(self) -> None:
        """Nothing more comes."""
        n_bytes, self._n_bytes = self._n_bytes, 0
        if n_bytes:
            self._bodies.give(n_bytes)


def is_of_answer(path: bytes) -> bool:
    """Say whether a path may be of one answer, or of conversations."""
    return _place(path) is not None


def names_own(path: bytes) -> bool:
    """Say whether a path names an answer or a conversation that a gateway of this kind has made."""
    place = _place(path)
    return place is not None and place.answer_id.startswith(_OWN)


def unknown_object() -> VeloxError:
    """Return the error for one that is not kept."""
    message = "there is no such object here, or no longer, or it was made by another caller"
    return VeloxError(Reason.UNKNOWN_OBJECT, message)


def _place(path: bytes) -> AnswerPlace | None:
    """Return the id of the answer or conversation that a path names, and what stands behind it; None: it names none."""
    if path.endswith(_CONVERSATIONS_PATH):
        return _CONVERSATIONS
    start = next((start for start in _STARTS if start in path), None)
    if start is None:
        return None
    before, _, rest = path.partition(start)
    if before and not before.endswith(b"/"):
        return None
    name, _, more = rest.strip(b"/").partition(b"/")
    return AnswerPlace(start.partition(b"/")[2].decode() + name.decode("latin-1"), more.decode("latin-1"))
