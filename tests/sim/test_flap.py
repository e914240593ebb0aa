"""The simulator goes down and comes up again, in each of the ways that a server can be down."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Final

import httpx
import pytest

from tests.sim.harness import FAST, Peer, wait_until, with_sim
from tests.untrusting import NO_TRUST
from velox_sim.options import DownAs, SimOptions
from velox_sim.server import SimServer, start

ALWAYS: Final = (0.0, 3600.0)
NEVER: Final = (3600.0, 1.0)
ASK: Final = {"model": "m", "prompt": ""}
HTTP2_INTERNAL_ERROR: Final = 2


@pytest.mark.parametrize(("flap_as", "status"), [("500", 500), ("503", 503)])
def test_down_with_a_status_fails_everything(flap_as: DownAs, status: int) -> None:
    """Work, listings and metrics get it in OpenAI's shape; the health is 503 either way."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            for path in ("/v1/models", "/metrics", "/nothing"):
                assert (await client.get(path)).status_code == status
            reply = await client.post("/v1/completions", json=ASK)
            assert reply.status_code == status and reply.json()["error"]["type"] == "server_error"
            assert (await client.get("/health")).status_code == 503

    with_sim(replace(FAST, flap=ALWAYS, flap_as=flap_as), talk)


@pytest.mark.parametrize("flap_as", ["500", "503", "reset", "refuse"])
def test_up_is_as_without_a_flap(flap_as: DownAs) -> None:
    """While it is up, nothing is to be seen of it."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            assert (await client.post("/v1/completions", json=ASK)).status_code == 200
            assert (await client.get("/health")).status_code == 200

    with_sim(replace(FAST, flap=NEVER, flap_as=flap_as), talk)


def test_down_as_a_reset_takes_the_request_and_resets_the_connection() -> None:
    """No FIN, which could be the end of a reply: RST."""

    async def talk(sim: SimServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        await wait_until(lambda: not sim.statistics().n_connections)
        assert sim.statistics().n_requests == 1

    with_sim(replace(FAST, flap=ALWAYS, flap_as="reset"), talk)


def test_down_as_a_reset_over_http2_resets_the_stream() -> None:
    """The connection stays; its other streams are none of its business."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        first, second = peer.ask(), peer.ask()
        await peer.read_until(lambda: len(peer.resets) == 2)
        assert peer.resets == {first: HTTP2_INTERNAL_ERROR, second: HTTP2_INTERNAL_ERROR}
        assert not peer.bodies and not peer.has_goaway
        peer.close()
        await wait_until(lambda: not sim.statistics().n_connections)

    with_sim(replace(FAST, flap=ALWAYS, flap_as="reset"), talk)


async def _is_refused(sim: SimServer) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", sim.port)
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # it was in the kernel's line when the port was closed
    writer.close()
    return False


async def _wait(sim: SimServer, *, until_refused: bool) -> None:
    while await _is_refused(sim) is not until_refused:
        await asyncio.sleep(0.005)


def test_down_as_refused_closes_the_port_and_opens_it_again() -> None:
    """Idle connections close, who connects is refused, and then the same port answers again, twice over."""

    async def talk(sim: SimServer) -> None:
        port = sim.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        for _ in range(2):
            await _wait(sim, until_refused=True)
            with pytest.raises(OSError, match="in use"), socket.socket() as thief:
                thief.bind(("127.0.0.1", port))  # it stays ours
            await _wait(sim, until_refused=False)
        assert sim.port == port

    with_sim(replace(FAST, flap=(0.15, 0.15), flap_as="refuse"), talk)


def test_down_as_refused_lets_a_stream_go_on_to_its_end() -> None:
    """Only who comes is refused: an answer that has begun is said to its end."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            async with client.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as reply:
                pieces = reply.aiter_text()
                text = await anext(pieces)
                await _wait(sim, until_refused=True)
                assert "[DONE]" not in text
                text += "".join([piece async for piece in pieces])
            assert text.endswith("[DONE]\n\n")

    with_sim(replace(FAST, flap=(0.5, 3600.0), flap_as="refuse", token_rate=20, tokens=40), talk)


def test_down_and_up_again_with_a_status() -> None:
    """A kept connection sees both, again and again."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(verify=NO_TRUST, base_url=sim.url) as client:
            for status in (503, 200, 503, 200):
                while (await client.get("/health")).status_code != status:
                    await asyncio.sleep(0.005)

    with_sim(replace(FAST, flap=(0.1, 0.1)), talk)


def test_socket_that_is_given_cant_be_closed_for_a_time() -> None:
    """There is no port to open again; whoever wants that says so at once."""

    async def main(options: SimOptions) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(ValueError, match="expected no socket"):
            await start(options, sock=sock)

    asyncio.run(main(replace(FAST, flap=NEVER, flap_as="refuse")))
