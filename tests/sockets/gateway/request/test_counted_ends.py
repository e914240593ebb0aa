"""What a client has whole is counted when its last bytes go out: behind them the worker may be killed."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
import uvloop

from tests.sockets.gateway.core_gateway import JSON_BODY, FakeClient, ScriptedUpstream, Step, gateway, request_head
from velox.errors import Reason, VeloxError
from velox.gateway.front.intake import Gateway
from velox.gateway.request.exchange import Exchange
from velox.heads import ReplyHead
from velox.net.application import ClientExchange
from velox.net.upstream.interface import UpstreamFailure
from velox.observe import series
from velox.protocol.http1.write import LAST_CHUNK
from velox.types import ANYONE

_SSE: Final = (b"content-type", b"text/event-stream")
_EVENT: Final = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
_BODY: Final = b'{"choices": [{"message": {"role": "assistant", "content": "hi"}}]}'
_ASKED: Final = b'{"model": "m", "messages": []}'


class Counted:
    """What a gateway has counted so far: requests, attempts that answered, and first bytes of replies."""

    def __init__(self, made: Gateway) -> None:
        self._cells: Final = made.parts.recorder.metrics._cells

    def now(self) -> tuple[int, int]:
        requests = sum(self._cells[series.REQUESTS.first : series.REQUESTS.end])
        return requests, sum(self._cells[series.ATTEMPTS.first : series.ATTEMPTS.end])


class Watching(FakeClient):
    """A client that looks at each of its bytes what has been counted."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self._counted: Final = counted
        self.seen: Final[list[tuple[int, int]]] = []

    def write(self, data: bytes) -> None:
        super().write(data)
        self.seen.append(self._counted.now())


async def _ask(made: Gateway, body: bytes = _ASKED) -> Watching:
    client = Watching(Counted(made))
    assert made.submit(client, request_head(), body, ANYONE) is not None
    await client.finished.wait()
    return client


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([(ReplyHead.of(200, [JSON_BODY], len(_BODY)), _BODY, True)], id="at one go"),
        pytest.param(
            [(ReplyHead.of(200, [JSON_BODY], len(_BODY)), _BODY[:9], False), (None, _BODY[9:], True)], id="in two reads"
        ),
        pytest.param([(ReplyHead.of(200, [_SSE], None), _EVENT, False), (None, _EVENT, True)], id="stream"),
        pytest.param(
            [(ReplyHead.of(200, [_SSE], None), _EVENT, False), (None, _EVENT, False), (None, b"", True)],
            id="stream whose end comes alone",
        ),
        pytest.param([(ReplyHead.of(429, [JSON_BODY], 2), b"{}", True)], id="error"),
    ],
)
def test_whole_reply_is_counted_before_its_last_bytes_go_out(steps: list[Step]) -> None:
    """And once: behind them nothing is counted any more."""

    async def main() -> None:
        with gateway(ScriptedUpstream(steps).dial) as made:
            client = await _ask(made)
            assert client.seen[-1] == (1, 1)
            assert all(before == (0, 0) for before in client.seen[:-1])
            assert Counted(made).now() == (1, 1)

    uvloop.run(main())


def test_reply_that_breaks_is_counted_by_how_it_ended() -> None:
    """Its last bytes never went out."""
    steps: list[Step] = [
        (ReplyHead.of(200, [_SSE], None), _EVENT, False),
        UpstreamFailure(Reason.UPSTREAM_RESET, "the upstream reset the connection"),
    ]

    async def main() -> None:
        with gateway(ScriptedUpstream(steps).dial) as made:
            client = await _ask(made)
            assert len(client.cuts) == 1 and client.seen == [(0, 0)]
            assert Counted(made).now() == (1, 1)

    uvloop.run(main())


class Ended(Watching):
    """A client whose exchange is ended from outside once the last bytes have gone out, before it has heard of them."""

    exchange: ClientExchange | None = None

    def write(self, data: bytes) -> None:
        super().write(data)
        if data.endswith(LAST_CHUNK):
            assert isinstance(self.exchange, Exchange)
            error = VeloxError(Reason.DRAINING, "the worker ends")
            asyncio.get_running_loop().call_soon(self.exchange.fail, error)


def test_reply_that_is_whole_is_not_cut_by_the_end_of_a_drain() -> None:
    """It is counted as it was, and ends as one."""
    steps: list[Step] = [(ReplyHead.of(200, [_SSE], None), _EVENT, False), (None, _EVENT, True)]

    async def main() -> None:
        with gateway(ScriptedUpstream(steps).dial) as made:
            client = Ended(Counted(made))
            client.exchange = made.submit(client, request_head(), _ASKED, ANYONE)
            await client.finished.wait()
            assert client.cuts == [] and Counted(made).now() == (1, 1)

    uvloop.run(main())
