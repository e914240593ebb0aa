"""Real servers that allow few streams on a connection: more of them at once take more connections, and all run."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.recording import SSE, Call
from tests.e2e.tools import request_bytes
from tests.interop.conftest import PLACES, Place
from tests.interop.crowd import Asked, ask, chat
from tests.interop.process import Limits
from tests.interop.servers import LARGE

LIMITS = Limits(streams=8)
N_STREAMS = 40
# Its limit is 250 and can't be set.
N_STREAMS_CADDY = 300
START_S = 20.0
only_http2 = pytest.mark.parametrize(
    "place", [param for param in PLACES if param.values[0][1] != "http1"], indirect=True
)


async def hold(call: Call) -> None:
    """Script: a stream that ends at a step."""
    await call.head(200, SSE)
    await call.data(b"data: 1\n\n")
    await call.step()
    await call.data(b"data: [DONE]\n\n")
    await call.end()


async def run(place: Place, request: bytes, n_streams: int) -> list[bytes]:
    """Run the streams, all at the same time; return the bodies of those that are whole."""
    streams = [Asked() for _ in range(n_streams)]
    release = asyncio.Event()
    pause = None if place.server.is_proxy else release.wait
    running = [asyncio.create_task(ask(place.velox.port, request, stream, pause)) for stream in streams]
    async with asyncio.timeout(START_S):
        for stream in streams:
            await stream.began.wait()
    assert not any(stream.ended for stream in streams)
    release.set()
    place.behind.step(n_streams)
    return [answer.body for answer in await asyncio.gather(*running) if answer.looks_whole]


@only_http2
def test_more_streams_than_a_connection_allows(place: Place) -> None:
    """None is refused, none waits for another one's end (F-36)."""
    n_streams = N_STREAMS_CADDY if place.server.name == "Caddy" else N_STREAMS

    with place.behind.playing(hold):
        if place.server.is_proxy:
            bodies = asyncio.run(run(place, chat(stream=True), n_streams))
            assert bodies == [b"data: 1\n\ndata: [DONE]\n\n"] * n_streams
        else:
            file = request_bytes("GET", "/v1/large.json", None, {"connection": "close"})
            bodies = asyncio.run(run(place, file, n_streams))
            assert [body == LARGE for body in bodies] == [True] * n_streams
