"""Kept answers that several gateways have together: one worker's side, over whatever store.

    DIGEST of owner and id  ->  =TEXT       an answer, by its own id
                                @DIGEST     the same, by the id of one of its items
                                !           it was deleted: no gateway may find its own copy

A conversation changes, and each change is made of what it is then: a change that another gateway made meanwhile is not
written over, but this one made anew on top of it.

What the store has no room for, or can't be told in time, is not kept there: the gateway that made the answer still has
it.

Knows: values, what is under way. Does not know: the store, what an answer is, or what a request without one gets.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeVar

from velox.gateway.answers.values import AnswersDownError, Changed
from velox.runtime.shared.store import Outage, StoreDownError

__all__ = ["LEAST_S", "AnswerBytes", "AnswerSharing"]

_T = TypeVar("_T")
LEAST_S: Final = 1.0  # an answer may be megabytes, and nobody has it otherwise
_MOST_UNDER_WAY: Final = 32 * 1024 * 1024
_MOST_TRIES: Final = 64
_TEXT, _LINK, _GONE = b"=", b"@", b"!"


class AnswerBytes(Protocol):
    """Where values are kept by digests of 20 bytes. Raises StoreDownError."""

    @property
    def name(self) -> str:
        """Return what the log calls it."""

    async def read(self, digest: bytes) -> bytes | None:
        """Return a value; None: there is none, or no longer. Its time begins anew."""

    async def write(self, values: Mapping[bytes, bytes]) -> None:
        """Keep values, in the place of others."""

    async def swap(self, digest: bytes, value: bytes, values: Mapping[bytes, bytes]) -> bool:
        """Keep values if the one of `digest` is still `value`, all of them at once; return False if it is not."""

    async def close(self) -> None:
        """Let go of all connections."""


class AnswerSharing:
    """Of one worker; see SharedAnswers. timeout_s: for each question."""

    def __init__(
        self, store: AnswerBytes, timeout_s: float, loop: asyncio.AbstractEventLoop, logger: logging.Logger
    ) -> None:
        self._store: Final = store
        self._timeout_s: Final = timeout_s
        self._loop: Final = loop
        self._outage: Final = Outage(
            store.name, "kept answers", "those of other gateways get 503", timeout_s, loop, logger
        )
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._latest: Final[dict[bytes, asyncio.Task[None]]] = {}  # of a digest, which the next one waits for
        self._n_under_way = 0  # bytes

    def __repr__(self) -> str:
        return f"<AnswerSharing {self._outage!r} under way={self._n_under_way}>"

    @property
    def name(self) -> str:
        """See SharedAnswers."""
        return self._store.name

    async def get(self, owner: str, object_id: str) -> bytes | None:
        """See SharedAnswers."""
        digest = _digest(owner, object_id)
        await self._told(digest)
        value = await self._asking(self._store.read(digest))
        if value is not None and value.startswith(_LINK):
            value = await self._asking(self._store.read(value[1:]))
        if value is None or not value.startswith((_TEXT, _GONE)):
            return None
        return value[1:]

    def put(self, owner: str, ids: tuple[str, ...], text: bytes) -> None:
        """See SharedAnswers. In any thread."""
        values = _values(owner, ids, text)
        self.begin(owner, ids[0], lambda: self._keep(values, len(text)))

    async def change(self, owner: str, object_id: str, change: Callable[[bytes], Changed]) -> bool:
        """See SharedAnswers."""
        digest = _digest(owner, object_id)
        await self._told(digest)
        for _ in range(_MOST_TRIES):
            value = await self._asking(self._store.read(digest))
            if value is None or not value.startswith(_TEXT):
                return False
            made = change(value[1:])
            values: dict[bytes, bytes] = {}
            for ids, text in made.texts:
                values.update(_values(owner, ids, text))
            if await self._asking(self._store.swap(digest, value, values)):
                return True
        raise AnswersDownError  # others change it all the time

    async def forget(self, owner: str, ids: tuple[str, ...]) -> None:
        """See SharedAnswers."""
        await self._told(_digest(owner, ids[0]))
        await self._asking(self._store.write({_digest(owner, each): _GONE for each in ids}))

    def begin(self, owner: str, object_id: str, work: Callable[[], Awaitable[None]]) -> None:
        """See SharedAnswers. In any thread."""
        self._loop.call_soon_threadsafe(self._begin, _digest(owner, object_id), work)

    async def close(self) -> None:
        """Let what is under way come to its end, and leave."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timeout_s)
        await self._store.close()

    # -- inside -------------------------------------------------------------------------------------

    def _begin(self, digest: bytes, work: Callable[[], Awaitable[None]]) -> None:
        """Begin some work on what is kept under a digest, once what was begun before is done."""
        task = self._loop.create_task(self._in_turn(self._latest.get(digest), work))
        self._latest[digest] = task
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(digest, ended))

    async def _in_turn(self, before: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]) -> None:
        if before is not None:
            await asyncio.wait((before,))
        await work()

    def _ended(self, digest: bytes, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._latest.get(digest) is task:
            del self._latest[digest]

    async def _told(self, digest: bytes) -> None:
        """Wait until the store was told what is kept under a digest: who asks here reads what was kept here."""
        task = self._latest.get(digest)
        if task is not None and asyncio.current_task() not in self._tasks:
            await asyncio.wait((task,))

    async def _keep(self, values: Mapping[bytes, bytes], n_bytes: int) -> None:
        if self._n_under_way + n_bytes > _MOST_UNDER_WAY:
            self._outage.failed("it takes answers too slowly")
            return
        self._n_under_way += n_bytes
        try:
            await self._asking(self._store.write(values))
        except AnswersDownError:
            pass  # the log has it
        finally:
            self._n_under_way -= n_bytes

    async def _asking(self, question: Awaitable[_T]) -> _T:
        """Ask the store. Raises AnswersDownError."""
        try:
            return await self._outage.asking(question)
        except StoreDownError:
            raise AnswersDownError from None


def _values(owner: str, ids: tuple[str, ...], text: bytes) -> dict[bytes, bytes]:
    first, *others = ids
    digest = _digest(owner, first)
    return {digest: _TEXT + text, **{_digest(owner, each): _LINK + digest for each in others}}


def _digest(owner: str, object_id: str) -> bytes:
    """Return the key of an id; its length and letters are not the client's to choose."""
    text = f"{owner}\0{object_id}".encode("utf-8", "replace")
    return hashlib.blake2b(text, digest_size=20).digest()
