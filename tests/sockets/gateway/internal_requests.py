"""What the tests of the gateway's own requests share: pools to real upstreams, of which nothing may be left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from tests.e2e.recording import RecordingUpstream
from tests.patience import PATIENCE_S
from tests.sockets.net.dialing import dialer_to, local
from velox.heads import Headers
from velox.net.upstream.interface import UpstreamRequest
from velox.net.upstream.pool import UpstreamPool

__all__ = ["GET", "Place", "eventually", "place", "request"]


def request(method: bytes = b"GET", target: bytes = b"/metrics", body: bytes | None = None) -> UpstreamRequest:
    """A request of the gateway's own."""
    headers: Headers = [(b"user-agent", b"velox")]
    return UpstreamRequest.of(method, target, headers, body)


GET: Final = request()


@dataclass(frozen=True)
class Place:
    """Where a test asks: all that ask() needs of a member."""

    pool: UpstreamPool

    @property
    def n_open(self) -> int:
        """Exchanges in flight."""
        return self.pool.statistics().streams


@contextlib.asynccontextmanager
async def place(upstream: RecordingUpstream, *, max_connections: int = 4) -> AsyncIterator[Place]:
    """A pool to an upstream for the block, with one warm connection. No stream may be left at its end."""
    dialer = dialer_to(local(upstream.port), http2="on" if upstream.http2 else "off")
    headers: Headers = [(b"user-agent", b"velox")]
    pool = UpstreamPool(
        dialer.dial,
        UpstreamRequest.of(b"HEAD", b"/v1/models", headers, None),
        warm_connections=1,
        max_connections=max_connections,
        warmup_timeout_s=5.0,
        on_change=lambda: None,
        on_warm_failure=lambda _: None,
    )
    n_before = upstream.n_open
    pool.start()
    made = Place(pool)
    try:
        await eventually(lambda: pool.is_warm and not made.n_open)
        yield made
        await eventually(lambda: not made.n_open)
        assert not pool.statistics().waiting
    finally:
        pool.close()
        await eventually(lambda: upstream.n_open <= n_before)  # what is aborted closes some turns of the loop later


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)
