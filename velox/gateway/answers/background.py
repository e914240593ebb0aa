"""Answers in the background: a request of its own, whose reply is kept for who asks for it later.

    begin()   the answer is kept as `queued`, and its client is told so; the request follows in the loop's next turn
    watch     each second: an answer that was cancelled or deleted, through any worker, is given up; one that runs is
              kept anew, so that a worker that dies leaves one that is told as failed a minute later

The request is one like any other: queue, limits, route, fallback, records.

Knows: when an answer is made, and given up. Does not know: what stands in it (dialects/responses/background.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from velox.dialects.canonical.errors import BadRequestError
from velox.dialects.canonical.model import ApiError, ErrorKind
from velox.dialects.openai_errors import read_error
from velox.dialects.responses.background import BackgroundAnswer
from velox.dialects.responses.kept import KeptAnswer
from velox.errors import VeloxError
from velox.gateway.translation.client_request import refusal
from velox.heads import Headers, RequestHead
from velox.net.application import Application, ChunkWriter, ClientExchange, PairsOnly, Successor
from velox.net.client.body_budget import BodyBudget
from velox.net.client.refusals import no_room
from velox.types import Caller

__all__ = ["begin"]

_LOOK_S: Final = 1.0
_ALIVE_S: Final = 60
_AGAIN_S: Final = 10.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_BAD_GATEWAY: Final = 502
_JSON: Final = ((b"content-type", b"application/json"), (b"accept", b"application/json"))
# Of the client's connection and body alone.
_NOT_PASSED: Final = frozenset(
    {
        *(b"accept", b"accept-encoding", b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"),
        *(b"connection", b"expect", b"idempotency-key", b"x-request-id", b"origin"),
    }
)

# Keeps an answer; the latest of one id counts.
Keep: TypeAlias = Callable[[KeptAnswer], None]
# Returns the answer with an id; None: there is none, or no longer. Raises VeloxError.
Found: TypeAlias = Callable[[str, Caller], Awaitable[KeptAnswer | None]]


def begin(
    application: Application,
    loop: asyncio.AbstractEventLoop,
    keep: Keep,
    found: Found,
    bodies: BodyBudget,
    head: RequestHead,
    body: bytes | bytearray,
    caller: Caller,
    answer_id: str,
    *,
    previous: str | None,
    conversation: str | None,
    own_input: bytes,
    keep_end: Callable[[KeptAnswer], None],
) -> bytes:
    """Begin an answer; return what its client is told. Raises VeloxError.

    application: gets the request that makes it. keep: keeps an answer as it is meanwhile; found: finds it, and raises
    VeloxError. own_input: the items that the request sent. keep_end: keeps the answer that is made.
    """
    try:
        answer = BackgroundAnswer(answer_id, int(time.time()), body, previous, conversation)
    except BadRequestError as exc:
        raise refusal(exc) from exc
    request = answer.request()
    if not bodies.take_unless_waiting(len(request)):
        raise no_room(close=False)
    run = _Run(application, loop, keep, found, caller, answer, own_input, keep_end, lambda: bodies.give(len(request)))
    told = run.keep("queued")
    fields = [field for field in head.headers if field[0] not in _NOT_PASSED]
    sub = RequestHead.of(b"POST", head.target, [*fields, *_JSON], len(request))
    loop.call_soon(run.begin, sub, request)
    return told


class _Run(PairsOnly):
    """One answer that is made, and the client that its reply is for."""

    address: Final = ""
    may_run_ahead: Final = False
    chunk_writer: Final[ChunkWriter | None] = None
    is_write_paused: Final = False

    def __init__(
        self,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        keep: Keep,
        found: Found,
        caller: Caller,
        answer: BackgroundAnswer,
        own_input: bytes,
        keep_end: Callable[[KeptAnswer], None],
        give_room: Callable[[], None],
    ) -> None:
        self._application: Final = application
        self._loop: Final = loop
        self._keep: Final = keep
        self._found: Final = found
        self._caller: Final = caller
        self._answer: Final = answer
        self._input: Final = own_input
        self._keep_end: Final = keep_end
        self._give_room: Callable[[], None] | None = give_room
        self._exchange: ClientExchange | None = None
        self._watch: asyncio.Task[None] | None = None
        self._status = 0
        self._pieces: list[bytes] = []
        self._n_bytes = 0
        self._is_over = False

    def __repr__(self) -> str:
        return f"<_Run {self._answer!r} {'over' if self._is_over else 'runs'}>"

    def keep(self, status: str) -> bytes:
        """Keep the answer as it is now, and return it."""
        response = self._answer.begun(status)
        self._keep(self._made(response, int(time.time()) + _ALIVE_S))
        return response

    def begin(self, head: RequestHead, body: bytes) -> None:
        """Ask for the answer."""
        self._watch = self._loop.create_task(self._look())
        exchange = self._application.submit(self, head, body, self._caller)
        if not self._is_over:
            self._exchange = exchange

    async def _look(self) -> None:
        """Give the answer up when somebody has cancelled or deleted it; say that it is still made."""
        n_looks = 0
        while not self._is_over:
            await asyncio.sleep(_LOOK_S)
            n_looks += 1
            kept = await self._found(self._answer.id, self._caller)
            if kept is None or not kept.until_s:
                self._is_over = True
                exchange, self._exchange = self._exchange, None
                if exchange is not None:
                    exchange.client_gone()
                self.release_body()
                return
            if n_looks == 1 or not n_looks % round(_AGAIN_S / _LOOK_S):
                self.keep("in_progress")

    def _made(self, response: bytes, until_s: int = 0) -> KeptAnswer:
        answer = self._answer
        return KeptAnswer(answer.id, self._caller.name, answer.previous, self._input, response, until_s)

    # -- Client ---------------------------------------------------------------------------------------

    def begin_reply(
        self, status: int, headers: Headers, length: int | None, data: bytes, end: bool, *, has_body: bool
    ) -> None:
        """See Client."""
        self._status = status
        self.body(data, end)

    def body(self, data: bytes, end: bool) -> None:
        """See Client."""
        self._n_bytes += len(data)
        if self._n_bytes <= _MOST_BYTES:
            self._pieces.append(data)

    def cut(self, last: bytes) -> None:
        """See Client."""
        self._fail(ApiError(ErrorKind.API, _BAD_GATEWAY, "the upstream's reply ended before the answer was whole"))

    def answer(self, status: int, headers: Headers, body: bytes, *, with_body: bool, close: bool) -> None:
        """See Client: an error of Velox's own."""
        self._fail(read_error(status, body))

    def switch(self, headers: Headers, successor: Successor) -> None:
        """Never called: its head offers nothing."""
        raise AssertionError("only a head with an offer")

    def finish(self) -> None:
        """See Client."""
        body = b"".join(self._pieces)
        self._end(self._answer.ended(self._status, body if self._n_bytes <= _MOST_BYTES else b""))

    def hold_more(self, n_bytes: int) -> bool:
        """Never called: the body has no coding."""
        raise AssertionError("only a body with a coding")

    def release_body(self) -> None:
        """See Client."""
        give, self._give_room = self._give_room, None
        if give is not None:
            give()

    # -- inside ---------------------------------------------------------------------------------------

    def _fail(self, error: ApiError) -> None:
        self._end(self._answer.failed(error))

    def _end(self, response: bytes) -> None:
        """Keep the answer, unless somebody has cancelled or deleted it meanwhile."""
        if self._is_over:
            return
        self._is_over = True
        self._exchange = None
        self.release_body()
        if self._watch is not None:
            self._watch.cancel()
        self._loop.create_task(self._keep_unless_over(response))

    async def _keep_unless_over(self, response: bytes) -> None:
        try:
            kept = await self._found(self._answer.id, self._caller)
        except VeloxError:
            kept = None  # nobody can say: what was told last counts
        if kept is not None and kept.until_s:
            self._keep_end(self._made(response))
