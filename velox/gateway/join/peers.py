"""The other workers of a gateway, as far as calls are joined: which has a call, and a connection to it.

A worker that joins calls listens on a socket in Linux's abstract namespace, which its kernel has named. Only who knows
a token is answered there: it is in the shared memory. And only processes of the same user are asked, or heard.

Knows: sockets, and whom to ask. Does not know: which requests may join (joining.py), or what is said (link.py).
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from velox.gateway.join.link import LinkClient, LinkServer
from velox.policy.join.frames import FrameKind, Question, Wanted
from velox.policy.join.joined_call import JoinedCall
from velox.policy.join.table import JoinTable
from velox.shm.join_index import TOKEN_BYTES, JoinIndex, JoinPlace

__all__ = ["Peers"]

_BACKLOG: Final = 1024
# The other worker is asked for what it has in memory: one that is not there by then stands still.
_ANSWER_S: Final = 1.0
# pid, uid, gid (unix(7), SO_PEERCRED)
_CREDENTIALS: Final = struct.Struct("3i")


class Peers:
    """Those of one worker. table: its own calls. uid: the user whose processes they are; None: this one's."""

    __slots__ = ("_asked", "_index", "_links", "_loop", "_server", "_sock", "_table", "_task", "_token", "_uid")

    def __init__(
        self, index: JoinIndex, table: JoinTable, loop: asyncio.AbstractEventLoop, *, uid: int | None = None
    ) -> None:
        self._uid: Final = os.geteuid() if uid is None else uid
        self._index: Final = index
        self._table: Final = table
        self._loop: Final = loop
        self._token: Final = secrets.token_bytes(TOKEN_BYTES)
        self._links: Final[set[LinkServer | LinkClient]] = set()
        self._asked: Final[dict[tuple[Wanted, bytes, bytes | None], asyncio.Future[FrameKind]]] = {}
        self._server: asyncio.Server | None = None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(b"")  # the kernel names it (unix(7), autobind)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        name = sock.getsockname()
        index.announce(JoinPlace(name if isinstance(name, bytes) else name.encode(), self._token))
        self._sock: Final = sock
        self._task: Final = loop.create_task(self._serve(), name="joined calls")

    def __repr__(self) -> str:
        return f"<Peers {len(self._links)} links>"

    @property
    def n_links(self) -> int:
        """Connections to other workers over which calls are followed, either way."""
        return sum(each.follows for each in self._links)

    def close(self) -> None:
        """The worker stops."""
        self._task.cancel()
        if self._server is not None:
            self._server.close()
        else:
            self._sock.close()
        for each in tuple(self._links):
            each.close()

    def publish(self, call: JoinedCall, digests: tuple[bytes, ...]) -> None:
        """Let other workers find a call, until it is closed."""
        for each in digests:
            self._index.put(each)
        call.on_closed = partial(_then, partial(self._drop, digests), call.on_closed)

    def find(self, wanted: Wanted, key: bytes, name: bytes | None) -> list[JoinPlace]:
        """Return where such a call seems to be."""
        return self._index.find(name if wanted is Wanted.NAMED and name is not None else key)

    async def join(
        self,
        places: list[JoinPlace],
        wanted: Wanted,
        key: bytes,
        name: bytes | None,
        begin: Callable[[], JoinedCall | None],
    ) -> FrameKind:
        """Have a call of another worker followed by one of the own table, which begin() makes. Requests that ask for
        the same call wait for one answer.
        """
        asked = (wanted, key, name)  # of another body with this name, the answer is another one
        before = self._asked.get(asked)
        if before is not None:
            return await asyncio.shield(before)
        answered = self._asked[asked] = self._loop.create_future()
        kind = FrameKind.NONE
        try:
            for place in places:
                kind = await self._ask(place, Question(place.token, wanted, key, name), begin)
                if kind is not FrameKind.NONE:
                    break
        finally:
            del self._asked[asked]
            answered.set_result(kind)
        return kind

    async def _ask(self, place: JoinPlace, question: Question, begin: Callable[[], JoinedCall | None]) -> FrameKind:
        link = LinkClient(question, begin, self._loop, self._links.discard)
        self._links.add(link)  # first: it may be lost before it is known that there is one
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._connect(place, link)
                return await link.answered
        except (OSError, TimeoutError):
            return FrameKind.NONE
        finally:
            if link.answered.cancelled() or not link.answered.done():
                link.close()
                self._links.discard(link)

    async def _connect(self, place: JoinPlace, link: LinkClient) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.connect(place.name)
            if not self._is_own(sock):
                raise ConnectionError("another user listens there")
        except BaseException:
            sock.close()
            raise
        is_there = False
        try:
            await self._loop.create_connection(lambda: link, sock=sock)
            is_there = not link.is_over
        finally:
            if not is_there:
                # The loop has closed its descriptor: by now, that number may be another connection's.
                sock.detach()

    async def _serve(self) -> None:
        self._server = await self._loop.create_unix_server(self._server_link, sock=self._sock)

    def _server_link(self) -> LinkServer:
        link = LinkServer(self._find, self._is_own, self._loop, self._links.discard)
        self._links.add(link)
        return link

    def _find(self, question: Question) -> JoinedCall | None:
        """Return the call that a question is for. Raises VeloxError."""
        if not hmac.compare_digest(question.token, self._token):
            return None
        table = self._table
        if question.wanted is Wanted.EQUAL:
            return table.find_equal(question.key)
        if question.wanted is Wanted.RETRY:
            return table.find_retry(question.key)
        return None if question.name is None else table.find_named(question.name, question.key)

    def _is_own(self, sock: socket.socket) -> bool:
        """Say whether the other end is of a process of the same user."""
        told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(told)[1]) == self._uid

    def _drop(self, digests: tuple[bytes, ...]) -> None:
        for each in digests:
            self._index.drop(each)


def _then(first: Callable[[], None], then: Callable[[], None] | None) -> None:
    first()
    if then is not None:
        then()
