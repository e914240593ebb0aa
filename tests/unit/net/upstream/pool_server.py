"""A member's pool and server in one, for tests of what a gateway asks by itself. Time is the loop's."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from velox.errors import Reason
from velox.heads import Headers, ReplyHead
from velox.net.upstream.interface import ReplySink, UpstreamConnection, UpstreamFailure, UpstreamRequest
from velox.net.upstream.pool import PoolStatistics

__all__ = ["Server"]


class Server:
    """Answers what it is asked with what a test says, after as long as it says.

    status: 0: it breaks the connection. begins: the head comes at once. asked: when, and what.
    """

    def __init__(self, status: int = 200, body: bytes = b"", takes_s: float = 0.01, *, begins: bool = False) -> None:
        self.status = status
        self.body = body
        self.takes_s = takes_s
        self.begins: Final = begins
        self.headers: Headers = []
        self.is_busy = False  # no connection comes free
        self.asked: Final[list[tuple[float, bytes]]] = []
        self.requests: Final[list[UpstreamRequest]] = []
        self.n_open = 0
        self.most_open = 0

    has_room = True

    def lease_nowait(self) -> UpstreamConnection | None:
        return None if self.is_busy else cast(UpstreamConnection, self)

    async def lease(self) -> UpstreamConnection:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("never")

    def give_back(self, connection: UpstreamConnection) -> None: ...

    def retire_stale_idle(self, now_s: float, least_s: float = 1.0) -> None: ...

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(1, 0, self.n_open, 0)

    def open(self, request: UpstreamRequest, sink: ReplySink) -> Stream:
        loop = asyncio.get_running_loop()
        self.asked.append((loop.time(), request.target))
        self.requests.append(request)
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        return Stream(self, sink, loop)


class Stream:
    """One exchange there."""

    def __init__(self, server: Server, sink: ReplySink, loop: asyncio.AbstractEventLoop) -> None:
        self._server: Final = server
        self._sink: ReplySink | None = sink
        self._answer: Final = loop.call_later(server.takes_s, self._end)
        if server.begins:
            loop.call_soon(sink.on_reply, ReplyHead.of(server.status, server.headers, len(server.body)), b"", False)

    def cancel(self) -> None:
        self._answer.cancel()
        if self._sink is not None:
            self._sink = None
            self._server.n_open -= 1

    def _end(self) -> None:
        server, sink, self._sink = self._server, self._sink, None
        assert sink is not None, "the timer is cancelled with it"
        server.n_open -= 1
        if server.status:
            sink.on_reply(ReplyHead.of(server.status, server.headers, len(server.body)), server.body, True)
        else:
            sink.on_failure(UpstreamFailure(Reason.UPSTREAM_RESET, "gone"))
