"""Real servers that limit a connection: GOAWAY or close after some requests, under load. Nothing fails."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.e2e.recording import JSON, SSE, Call
from tests.interop.conftest import PLACES, Place
from tests.interop.crowd import chat, shake
from tests.interop.process import Limits
from tests.interop.servers import SERVERS

LIMITS = Limits(requests=5)
N_REQUESTS = 200
N_AT_ONCE = 12
only_proxies = pytest.mark.parametrize(
    "place", [param for param in PLACES if SERVERS[param.values[0][0]].is_proxy], indirect=True
)


async def repeat(call: Call) -> None:
    """Script: say what was asked, as a stream where that is wanted."""
    if json.loads(call.body)["stream"]:
        await call.head(200, SSE)
        await call.data(b"data: %b\n\n" % call.body)
        await call.data(b"data: [DONE]\n\n")
        await call.end()
    else:
        await call.reply(200, JSON, call.body)


@only_proxies
def test_limit_of_requests_per_connection_fails_none(place: Place) -> None:
    """A server that leaves after 5 requests, under load: each request is answered, with its own answer (F-33, F-34)."""
    asked = [chat(stream=number % 2 == 0, user=f"client {number}") for number in range(N_REQUESTS)]
    before = place.velox.metrics()

    with place.behind.playing(repeat):
        answers = asyncio.run(shake(place.velox.port, asked, N_AT_ONCE))

    bodies = [request.partition(b"\r\n\r\n")[2] for request in asked]
    wanted = [b"data: %b\n\ndata: [DONE]\n\n" % body if number % 2 == 0 else body for number, body in enumerate(bodies)]
    assert [answer.told for answer in answers if answer.told or not answer.looks_whole] == []
    assert [answer.body for answer in answers] == wanted
    assert n_ended(place.velox.metrics()) - n_ended(before) >= N_REQUESTS // 20


def n_ended(metrics: dict[str, float]) -> float:
    """Return how many connections the server has ended."""
    causes = ("closed", "last", "goaway", "lost")
    return sum(metrics.get(f'velox_upstream_connections_ended_total{{cause="{cause}"}}', 0) for cause in causes)
