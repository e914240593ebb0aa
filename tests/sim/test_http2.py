"""The simulator over HTTP/2: by prior knowledge and by ALPN, windows, resets, goodbye."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
import httpx2
import openai
import pytest
import trustme

from tests.sim.harness import FAST, Peer, wait_until, with_sim
from velox_sim.server import SimServer

SLOW: Final = replace(FAST, tokens=20, token_rate=50)
CHAT: Final = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}

# Frame types and a flag, RFC 9113 §6.
DATA: Final = 0
GOAWAY: Final = 7
END_STREAM: Final = 1


@dataclass(frozen=True)
class Tls:
    """Files of a certificate for this machine's loopback address."""

    ca_file: str
    cert_file: str
    key_file: str

    def trust(self) -> ssl.SSLContext:
        """Return a context that trusts it."""
        return ssl.create_default_context(cafile=self.ca_file)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    folder: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", "localhost")
    files = Tls(str(folder / "ca.pem"), str(folder / "cert.pem"), str(folder / "key.pem"))
    authority.cert_pem.write_to_path(files.ca_file)
    leaf.private_key_pem.write_to_path(files.key_file)
    for blob in leaf.cert_chain_pems:
        blob.write_to_path(files.cert_file, append=True)
    yield files


def test_prior_knowledge_httpx_gets_answers_and_streams() -> None:
    """A client that speaks HTTP/2 from the first byte is understood without TLS."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(http1=False, http2=True, base_url=sim.url) as client:
            plain = await client.post("/v1/chat/completions", json=CHAT)
            streamed = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
            head = await client.head("/v1/models")
            missing = await client.get("/v1/nothing")

        assert [reply.http_version for reply in (plain, streamed, head, missing)] == ["HTTP/2"] * 4
        assert plain.json()["choices"][0]["message"]["content"] == "Hello! This answer "
        assert plain.headers["content-length"] == str(len(plain.content))
        assert plain.headers["x-request-id"].startswith("req_")
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 0
        assert missing.status_code == 404 and missing.json()["error"]["type"] == "invalid_request_error"

    with_sim(FAST, talk)


def test_alpn_chooses_the_version(tls: Tls) -> None:
    """Over TLS a client that offers h2 gets it, one that does not gets HTTP/1.1."""

    async def talk(sim: SimServer) -> None:
        versions = []
        for http2 in (True, False):
            async with httpx.AsyncClient(http2=http2, verify=tls.trust(), base_url=sim.url) as client:
                reply = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
                assert reply.text.endswith("data: [DONE]\n\n")
                versions.append(reply.http_version)

        assert sim.url.startswith("https://127.0.0.1:")
        assert versions == ["HTTP/2", "HTTP/1.1"]

    with_sim(replace(FAST, cert_file=tls.cert_file, key_file=tls.key_file), talk)


def test_alpn_without_http2_stays_on_http1(tls: Tls) -> None:
    """With HTTP/2 switched off, a client that offers both speaks HTTP/1.1."""

    async def talk(sim: SimServer) -> None:
        async with httpx.AsyncClient(http2=True, verify=tls.trust(), base_url=sim.url) as client:
            reply = await client.get("/v1/models")

        assert reply.http_version == "HTTP/1.1" and reply.status_code == 200

    with_sim(replace(FAST, cert_file=tls.cert_file, key_file=tls.key_file, http2=False), talk)


def test_openai_sdk_over_http2_and_tls(tls: Tls) -> None:
    """The real SDK streams a chat answer and a response over HTTP/2 with TLS."""

    async def talk(sim: SimServer) -> None:
        http = httpx2.AsyncClient(http2=True, verify=tls.trust())
        async with openai.AsyncOpenAI(
            base_url=f"{sim.url}/v1", api_key="sk-x", max_retries=0, http_client=http
        ) as client:
            async with client.responses.stream(model="any", input="hi") as stream:
                versions = {stream._raw_stream.response.http_version}
                await stream.until_done()
                final = await stream.get_final_response()
            chunks = [
                chunk.choices[0].delta.content or ""
                async for chunk in await client.chat.completions.create(
                    model="any", messages=[{"role": "user", "content": "hi"}], stream=True
                )
            ]

        assert versions == {"HTTP/2"}
        assert final.output_text == "".join(chunks) == "Hello! This answer "

    with_sim(replace(FAST, cert_file=tls.cert_file, key_file=tls.key_file), talk)


def test_many_streams_share_a_connection() -> None:
    """100 paced answers on one connection come side by side, each under its own id."""

    async def talk(sim: SimServer) -> None:
        loop = asyncio.get_running_loop()
        peer = await Peer.connect(sim)
        peer.h2.increment_flow_control_window(1 << 30)
        await peer.read()
        begin = loop.time()
        ids = [peer.ask() for _ in range(100)]
        await peer.read_until(lambda: len(peer.ended) == 100)
        elapsed_s = loop.time() - begin
        peer.close()

        assert elapsed_s < 2  # one after the other they would take 38 s
        keys = {json.loads(peer.bodies[i].split(b"\n", 1)[0].removeprefix(b"data: "))["id"] for i in ids}
        assert len(keys) == 100
        assert all(peer.bodies[i].count(b'"text":') == 21 for i in ids)
        await wait_until(lambda: sim.statistics().n_connections == 0)
        assert sim.statistics().n_requests == 100 and sim.statistics().n_cancelled == 0

    with_sim(SLOW, talk)


def test_closed_window_holds_one_stream_only() -> None:
    """An answer waits while its client's window is closed, without piling up; opened, it comes whole."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        held = peer.ask()
        await peer.read_until(lambda: len(peer.bodies.get(held, b"")) == 65_535)
        assert sim.statistics().n_running == 1
        assert 0 < sim.statistics().n_queued_bytes < 200_000  # the whole answer has 3 MB

        peer.h2.increment_flow_control_window(1 << 30)  # the connection's; the stream's is still closed
        other = peer.ask(stream=False)
        peer.h2.increment_flow_control_window(1 << 30, other)
        peer.flush()
        await peer.read_until(lambda: other in peer.ended)
        assert len(peer.bodies[held]) == 65_535 and sim.statistics().n_running == 1

        peer.h2.increment_flow_control_window(1 << 30, held)
        peer.flush()
        await peer.read_until(lambda: held in peer.ended)
        peer.close()

        assert peer.bodies[held].endswith(b"data: [DONE]\n\n")
        assert peer.bodies[held].count(b'"text":') == 20_001
        assert sim.statistics().n_running == 0

    with_sim(replace(FAST, tokens=20_000), talk)


def test_reset_stream_stops_at_once() -> None:
    """A stream that its client resets is stopped and counted; the next one on the connection is served."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        first, second = peer.ask(), peer.ask()
        await peer.read_until(lambda: len(peer.bodies) == 2)
        peer.h2.reset_stream(first, 8)
        peer.flush()
        await wait_until(lambda: sim.statistics().n_cancelled == 1)
        assert sim.statistics().n_running == 1
        await peer.read_until(lambda: second in peer.ended)
        peer.close()

        assert peer.bodies[second].endswith(b"data: [DONE]\n\n")
        assert not peer.bodies[first].endswith(b"data: [DONE]\n\n")

    with_sim(SLOW, talk)


def test_lost_connection_stops_all_its_streams() -> None:
    """A client that is gone takes its streams with it."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        for _ in range(3):
            peer.ask()
        await wait_until(lambda: sim.statistics().n_running == 3)
        peer.close()
        await wait_until(lambda: sim.statistics().n_running == 0)

        assert sim.statistics().n_cancelled == 3 and sim.statistics().n_connections == 0

    with_sim(replace(FAST, ttft_s=30), talk)


def test_close_sends_goaway_and_lets_streams_end() -> None:
    """At the goodbye the client gets GOAWAY at once, the rest of its running streams, then the end."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        peer.ask()
        events = b""
        while not events:
            kind, _, events = await peer.read_frame()
            events = events if kind == DATA else b""
        closing = asyncio.create_task(sim.close(grace_s=60))
        frames = [await peer.read_frame()]
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                frames.append(await peer.read_frame())
        await closing
        peer.close()

        # Tokens that were on their way may come before it; the end of the stream must not.
        goodbye = [frame[0] for frame in frames].index(GOAWAY)
        last_stream_id, error_code = struct.unpack(">II", frames[goodbye][2][:8])
        ends = [n for n, (kind, flags, _) in enumerate(frames) if kind == DATA and flags & END_STREAM]
        assert (last_stream_id, error_code) == (1, 0)
        assert len(ends) == 1 and ends[0] > goodbye
        assert b"".join(body for kind, _, body in frames if kind == DATA).endswith(b"data: [DONE]\n\n")
        assert sim.statistics().n_cancelled == 0

    with_sim(SLOW, talk)


def test_garbage_after_the_preface_ends_the_connection() -> None:
    """Bytes that are no frames end the connection with GOAWAY, and nothing else."""

    async def talk(sim: SimServer) -> None:
        peer = await Peer.connect(sim)
        await peer.read()
        peer._writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
        while await peer.read():
            pass
        peer.close()
        await wait_until(lambda: sim.statistics().n_connections == 0)
        async with httpx.AsyncClient(http1=False, http2=True, base_url=sim.url) as client:
            assert (await client.get("/v1/models")).status_code == 200

        assert peer.has_goaway

    with_sim(FAST, talk)


@pytest.mark.more
def test_large_upload_is_read_whole() -> None:
    """A request of 20 MB, more than the windows, is read on as it comes and answered."""

    async def talk(sim: SimServer) -> None:
        prompt = "x" * 20_000_000
        async with httpx.AsyncClient(http1=False, http2=True, base_url=sim.url) as client:
            reply = await client.post("/v1/completions", json={"model": "any", "prompt": prompt})

        assert reply.json()["usage"]["prompt_tokens"] == 5_000_000

    with_sim(FAST, talk)
