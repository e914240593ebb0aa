"""Answers in Responses of models whose provider keeps none: kept here for a while, as OpenAI does (`store`).

    unfold()   what a request refers to becomes a part of it, before it is sent anywhere
    keeper()   has the answer of a translated request kept, unless that says `store: false`
    serve()    GET, DELETE and the rest of /responses/ID, for an answer that is kept here

Knows: which requests may be for such an answer. Does not know: how one is found (kept_answers.py, which loads a dialect
that most gateways don't need).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from velox.errors import Reason, VeloxError
from velox.gateway.filters import ReplyFilter
from velox.heads import Headers, ReplyHead, RequestHead
from velox.net.application import Client, ClientExchange
from velox.net.client.body_budget import BodyBudget
from velox.types import AnswerKeeper, Caller, Surface

__all__ = [
    "REFERRING",
    "AnswerPlace",
    "AnswerStore",
    "Answers",
    "AnswersDownError",
    "BackgroundOwner",
    "Room",
    "Unfolded",
    "is_of_answer",
]

# Whose requests may refer to what is kept.
REFERRING: Final = frozenset({Surface.RESPONSES, Surface.COMPACT, Surface.COUNT_RESPONSES})
_HEADERS: Final = ((b"content-type", b"application/json"),)
_COLLECTION: Final = b"responses"
_BEFORE: Final = b"responses/resp_"
_ANSWER: Final = "resp_"
_OWN: Final = "resp_vx"  # no provider's id begins so


class Unfolded(NamedTuple):
    """A request with its whole input. previous: the answer that it goes on from. own: the items that came."""

    body: bytes
    previous: str | None
    own: bytes


class AnswerPlace(NamedTuple):
    """What a path names: an answer, and what stands behind it."""

    answer_id: str
    rest: str


class BackgroundOwner(Protocol):
    """What an answer in the background asks of the gateway."""

    loop: asyncio.AbstractEventLoop

    def submit(
        self, client: Client, head: RequestHead, body: bytes | bytearray | None, caller: Caller
    ) -> ClientExchange | None:
        """Take a whole request; None when it was refused on the spot."""


class AnswerStore(Protocol):
    """What keeps answers (kept_answers.py)."""

    async def unfold(self, body: bytes | bytearray, caller: Caller) -> Unfolded | None:
        """See Answers."""

    def keeper(self, caller: Caller, unfolded: Unfolded | None) -> AnswerKeeper:
        """See Answers."""

    def reading(self, keeper: AnswerKeeper, body: bytes | bytearray) -> ReplyFilter | None:
        """See Answers."""

    def in_background(
        self,
        owner: BackgroundOwner,
        bodies: BodyBudget,
        head: RequestHead,
        body: bytes | bytearray,
        caller: Caller,
        answer_id: str,
        keeper: AnswerKeeper,
    ) -> bytes:
        """See Answers."""

    async def serve(self, place: AnswerPlace, head: RequestHead, caller: Caller) -> bytes | None:
        """Return what is told of an answer; None: it is not kept here. Raises VeloxError."""


class AnswersDownError(Exception):
    """The store that several gateways share can't be asked."""


class Answers:
    """Of one worker. make: of what keeps them, once it is needed. is_used: tells whether anybody has kept any."""

    def __init__(self, make: Callable[[], AnswerStore], is_used: Callable[[], bool]) -> None:
        self._make: Final = make
        self._is_used: Final = is_used
        self._made: AnswerStore | None = None

    def __repr__(self) -> str:
        return f"<Answers {self._made!r}>"

    @property
    def _kept(self) -> AnswerStore:
        if self._made is None:
            self._made = self._make()
        return self._made

    async def unfold(self, body: bytes | bytearray, caller: Caller) -> Unfolded | None:
        """Return a request with what it refers to; None: it refers to nothing that is kept. Raises VeloxError."""
        return await self._kept.unfold(body, caller) if self._is_used() else None

    def keeper(self, caller: Caller, unfolded: Unfolded | None) -> AnswerKeeper:
        """Return who keeps the answer of a request."""
        return self._kept.keeper(caller, unfolded)

    def reading(self, keeper: AnswerKeeper, body: bytes | bytearray) -> ReplyFilter | None:
        """Return what reads an answer that passes as it came, for its keeper; None: the client wants it not kept."""
        return self._kept.reading(keeper, body)

    def in_background(
        self,
        owner: BackgroundOwner,
        bodies: BodyBudget,
        head: RequestHead,
        body: bytes | bytearray,
        caller: Caller,
        answer_id: str,
        keeper: AnswerKeeper,
    ) -> bytes:
        """Begin an answer in the background; return what its client is told. Raises VeloxError."""
        return self._kept.in_background(owner, bodies, head, body, caller, answer_id, keeper)

    async def serve(self, head: RequestHead, caller: Caller) -> tuple[int, Headers, bytes] | None:
        """Answer a request for an answer that is kept here; None: it is none of ours. Raises VeloxError."""
        place = _place(head.path)
        if place is None:
            return None
        told = await self._kept.serve(place, head, caller) if self._is_used() else None
        if told is not None:
            return 200, list(_HEADERS), told
        if place.answer_id.startswith(_OWN):
            message = "there is no such answer here, or no longer, or it was made by another caller"
            raise VeloxError(Reason.UNKNOWN_OBJECT, message)
        return None


class Room(ReplyFilter):
    """Gives back, with the end of its reply, the room of what was unfolded."""

    __slots__ = ("_bodies", "_n_bytes")

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
    """Say whether a path may be of one answer."""
    return _place(path) is not None


def _place(path: bytes) -> AnswerPlace | None:
    """Return the id of the answer that a path names, and what stands behind it; None: it names none."""
    if _BEFORE not in path:
        return None
    words = path.strip(b"/").split(b"/")
    if _COLLECTION not in words[:-1]:
        return None
    answer_id, *rest = (word.decode("latin-1") for word in words[words.index(_COLLECTION) + 1 :])
    return AnswerPlace(answer_id, "/".join(rest)) if answer_id.startswith(_ANSWER) else None
