"""Requests whose bodies came compressed: they are requests like others once they have been decoded.

    open()   begin to decode one; it is submitted again without its coding

Knows: that one of each kind is decoded at a time, in steps between which others have their turn, and that what it
expands to takes room of the budget of bodies. Does not know: codings (protocol/content_coding.py), or what is done with
a request.

A decoder holds up to 8 MiB that no budget knows of, one of br 24 MiB: so a worker has at most one of br, whose steps
may be long and are taken in the worker's thread, and one of all other codings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace
from typing import Final

from velox.errors import VeloxError, untraced
from velox.gateway.cpu_work import TranslationThread, in_steps
from velox.gateway.reply.respond import crash
from velox.heads import RequestHead
from velox.net.application import Application, Client, ClientExchange
from velox.net.client.refusals import no_room
from velox.protocol.content_coding import coding_of, decoding, has_long_steps
from velox.types import Caller

__all__ = ["CodedBodies"]

# Of the body as it came (RFC 9530 §2: of the content, which is coded).
_OF_THE_CODING: Final = frozenset({b"content-encoding", b"content-digest", b"content-md5", b"digest"})
_STEPS_AT_ONCE: Final = 8  # 1 MiB, and some milliseconds


class CodedBodies:
    """Those of one worker. application: gets the decoded requests. most_bytes: that a decoded body may have.

    turn, long_turn: of the one body that is decoded by the loop, and of the one that is decoded in the thread.
    """

    def __init__(
        self, application: Application, loop: asyncio.AbstractEventLoop, most_bytes: int, thread: TranslationThread
    ) -> None:
        self.application: Final = application
        self.loop: Final = loop
        self.most_bytes: Final = most_bytes
        self.thread: Final = thread
        self.turn: Final = asyncio.Lock()
        self.long_turn: Final = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<CodedBodies {'some are decoded' if self.turn.locked() or self.long_turn.locked() else 'none'}>"

    def open(self, client: Client, head: RequestHead, body: bytes | bytearray, caller: Caller) -> ClientExchange:
        """Take a whole request whose body is coded."""
        return _CodedRequest(self, client, head, body, caller)


class _CodedRequest:
    """One, as its connection sees it: while it is decoded, and then what it is submitted as."""

    def __init__(
        self, bodies: CodedBodies, client: Client, head: RequestHead, body: bytes | bytearray, caller: Caller
    ) -> None:
        self._bodies: Final = bodies
        self._client: Final = client
        self._exchange: ClientExchange | None = None
        self._is_paused = False
        self._task: asyncio.Task[None] | None = bodies.loop.create_task(self._run(head, body, caller), name="body")

    def __repr__(self) -> str:
        return f"<_CodedRequest {'decoded' if self._task is None else 'is decoded'}>"

    def client_gone(self, *, stalled: bool = False) -> None:
        """See ClientExchange."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()  # nothing has begun for it
        elif self._exchange is not None:
            self._exchange.client_gone(stalled=stalled)

    def client_paused(self) -> None:
        """See ClientExchange."""
        self._is_paused = True
        if self._exchange is not None:
            self._exchange.client_paused()

    def client_resumed(self) -> None:
        """See ClientExchange."""
        self._is_paused = False
        if self._exchange is not None:
            self._exchange.client_resumed()

    async def _run(self, head: RequestHead, body: bytes | bytearray, caller: Caller) -> None:
        bodies, application = self._bodies, self._bodies.application
        error: VeloxError | None = None
        try:
            coding = coding_of(head)
            async with bodies.long_turn if has_long_steps(coding) else bodies.turn:
                decoded = await self._decode(coding, body)
        except VeloxError as exc:
            error = untraced(exc)
        except Exception as exc:
            application.crashed(exc)
            error = crash()
        self._task = None
        if error is not None:
            application.refuse(self._client, head, error)
            return
        self._exchange = application.submit(self._client, _without_coding(head, len(decoded)), decoded, caller)
        if self._is_paused and self._exchange is not None:
            self._exchange.client_paused()

    async def _decode(self, coding: bytes, body: bytes | bytearray) -> bytearray:
        """Return it without its coding. Raises VeloxError."""
        bodies = self._bodies
        if not has_long_steps(coding):
            return await in_steps(decoding(coding, body, bodies.most_bytes, self._hold))
        pieces: list[int] = []
        steps = decoding(coding, body, bodies.most_bytes, pieces.append)
        while True:
            decoded = await bodies.thread.run(lambda: _some(steps))
            for n_bytes in pieces:
                self._hold(n_bytes)  # which is the loop's: some steps of 128 KiB at most are decoded by then
            if decoded is not None:
                return decoded
            pieces.clear()

    def _hold(self, n_bytes: int) -> None:
        """Take room for a piece. Raises VeloxError."""
        if not self._client.hold_more(n_bytes):
            raise no_room(close=False)


def _some(steps: Generator[None, None, bytearray]) -> bytearray | None:
    """Take some, as the thread has others' work in between; return what all came to, None before the last."""
    try:
        for _ in range(_STEPS_AT_ONCE):
            next(steps)
    except StopIteration as end:
        decoded: bytearray = end.value
        return decoded
    return None


def _without_coding(head: RequestHead, n_bytes: int) -> RequestHead:
    """Return the head of a request as it would be without a coding of its body, which has so many bytes."""
    fields = tuple(field for field in head.headers if field[0] not in _OF_THE_CODING)
    shape = replace(head.shape, fields=fields, chunked=False, is_shared=False, credential_at=-1)
    decoded = RequestHead(shape, (), n_bytes)
    decoded.keep_alive = head.keep_alive
    return decoded
