"""What fetches of tokens and credentials see of the network and the files: one connection for each question.

Such questions are few, some an hour, and small: no pool, no HTTP/2. They go out beside requests, on the same loop.

Knows: how one request is sent and how much of an answer is kept. Does not know: what is fetched (providers/).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from velox.errors import VeloxError
from velox.gateway.aside import ask
from velox.net.upstream.dialer import Dialer, DialTarget
from velox.net.upstream.interface import LoneOwner, ReadBuffer, UpstreamConnection, UpstreamRequest
from velox.net.upstream.pool import PoolStatistics
from velox.net.upstream.resolver import Resolver
from velox.net.upstream.tls import UpstreamContext, upstream_context
from velox.outcomes import ConnectionEnd
from velox.protocol.http2_engines import engine_factory
from velox.providers.renewal import FetchError, Question, Reply

__all__ = ["NetOutside"]

_MOST_BYTES: Final = 1024 * 1024  # of an answer, of a file
_BUFFER_BYTES: Final = 16 * 1024
_PORTS: Final = {"http": 80, "https": 443}


class NetOutside:
    """The outside of one worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._buffer: Final = ReadBuffer(_BUFFER_BYTES)
        self._contexts: Final[dict[str, UpstreamContext]] = {}  # by host: those of the settings

    def __repr__(self) -> str:
        return f"<NetOutside {len(self._contexts)} hosts>"

    async def ask(self, question: Question) -> Reply:
        """Send a request. Raises FetchError."""
        shown = question.url.partition("?")[0]
        try:
            url = urlsplit(question.url)
            host, port = url.hostname, url.port or _PORTS.get(url.scheme)
        except ValueError as exc:
            raise FetchError(f"{shown} is no URL that can be asked: {exc}") from None
        if not host or port is None:
            raise FetchError(f"{shown} is no http or https URL")
        try:
            context = await self._context(host) if url.scheme == "https" else None
            target = DialTarget(
                host,
                url.netloc.rpartition("@")[2].encode("idna" if not url.netloc.isascii() else "ascii"),
                "off",
                context,
                connect_timeout_s=question.timeout_s,
                tls_timeout_s=question.timeout_s,
            )
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            headers = [*question.headers, (b"user-agent", b"velox")]
            request = UpstreamRequest.of(question.method, path.encode("ascii"), headers, question.body)
            pool = _LonePool(self._dialer(target, host, port))
            answer = await ask(pool, request, self._loop, timeout_s=question.timeout_s, max_bytes=_MOST_BYTES)
        except (VeloxError, OSError, ValueError) as exc:
            said = exc.message if isinstance(exc, VeloxError) else type(exc).__name__
            raise FetchError(f"{host} was asked: {said}") from exc
        return Reply(answer.status, answer.body, answer.headers)

    async def read(self, path: str) -> bytes | None:
        """Return a file's content. Raises FetchError."""
        try:
            return await asyncio.to_thread(_read, path)
        except OSError as exc:
            raise FetchError(f"{path} can't be read ({exc.strerror})") from exc

    def _dialer(self, target: DialTarget, host: str, port: int) -> Dialer:
        resolver = Resolver(
            host,
            port,
            self._loop,
            refresh_s=None,  # it is for one question
            on_result=lambda _result: None,
            on_addresses=lambda _addresses: None,
        )
        return Dialer(target, resolver, self._buffer, self._loop, engine_factory("ngh2"))

    async def _context(self, host: str) -> UpstreamContext:
        context = self._contexts.get(host)
        if context is None:
            # Reading all authorities of the system takes some 10 ms.
            context = await asyncio.to_thread(upstream_context, "off", None)
            self._contexts[host] = context
        return context


class _LonePool:
    """Where ask() gets its connection: a new one, which is closed when it has served. It is its own member."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer: Final = dialer

    @property
    def pool(self) -> _LonePool:
        return self

    def lease_nowait(self) -> UpstreamConnection | None:
        return None

    async def lease(self) -> UpstreamConnection:
        return await self._dialer.dial(LoneOwner())

    def give_back(self, connection: UpstreamConnection) -> None:
        """Close one on which nothing was sent: a header can't be written. Else its owner does, when it has served."""
        if not connection.n_streams:
            connection.retire(ConnectionEnd.LAST)

    def retire_stale_idle(self, now_s: float, least_s: float = 1.0) -> None:
        """Do nothing: it has not idled."""

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(connections=0, dialing=0, streams=0, waiting=0)


def _read(path: str) -> bytes | None:
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > _MOST_BYTES:
        raise FetchError(f"{path} has more than {_MOST_BYTES} bytes")
    return content
