"""TLS with clients: the OpenAI SDK over it, who is refused, and what clients without TLS are told."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
import trustme

from tests.e2e.harness import KEY, VeloxProcess, read_reply
from tests.e2e.tls_clients import TlsFiles, resident_bytes, tls_connect, tls_sdk
from tests.e2e.tools import covers, run_velox
from tests.e2e.upstreams import start_sim
from tests.e2e.websocket_upstreams import WebSocketUpstream, connect
from tests.untrusting import NO_TRUST

SIM = ("serve", "--sim")
MESSAGES = [{"role": "user", "content": "hi"}]
GET = b"GET /v1/models HTTP/1.1\r\nhost: velox.test\r\n\r\n"
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def velox(files: TlsFiles) -> Iterator[VeloxProcess]:
    """A gateway of two workers that speaks TLS, and the simulator behind it."""
    env = {"VELOX_WORKERS": "2", "VELOX_RATE_LIMIT_RPM": "0", "VELOX_HEADER_TIMEOUT": "1s"}
    with VeloxProcess({**files.env(), **env}, SIM) as velox:
        yield velox


def failures(velox: VeloxProcess) -> dict[str, float]:
    """Return the handshakes that failed, by cause."""
    name = 'velox_tls_handshake_failures_total{cause="'
    return {
        sample.removeprefix(name).removesuffix('"}'): n
        for sample, n in velox.metrics().items()
        if sample.startswith(name)
    }


# -- the SDK ------------------------------------------------------------------------------------------------


@covers("VELOX_TLS_CERT", "VELOX_TLS_KEY")
def test_sdk_works_over_tls(velox: VeloxProcess, files: TlsFiles) -> None:
    """Plain and streamed, on one connection, verified against the authority."""
    assert velox.base_url.startswith("https://")
    with tls_sdk(velox, files.context()) as sdk:
        answer = sdk.chat.completions.create(model="velox-sim", messages=MESSAGES)
        assert answer.choices[0].message.content
        chunks = list(sdk.chat.completions.create(model="velox-sim", messages=MESSAGES, stream=True))
        assert len(chunks) > 3 and chunks[-1].choices[0].finish_reason == "stop"


def test_async_sdk_works_over_tls(velox: VeloxProcess, files: TlsFiles) -> None:
    """Twenty streams side by side."""

    async def ask(sdk: openai.AsyncOpenAI) -> int:
        stream = await sdk.chat.completions.create(model="velox-sim", messages=MESSAGES, stream=True)
        return len([chunk async for chunk in stream])

    async def main() -> list[int]:
        transport = openai.DefaultAsyncHttpxClient(verify=files.context(), trust_env=False)
        base_url = f"{velox.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0, http_client=transport) as sdk:
            return await asyncio.gather(*(ask(sdk) for _ in range(20)))

    counts = asyncio.run(main())
    assert len(set(counts)) == 1 and counts[0] > 3


@pytest.mark.parametrize("engine", ["ngh2", "h2"])
def test_sdk_speaks_http2_over_tls_where_both_want_to(files: TlsFiles, engine: str) -> None:
    """ALPN decides: HTTP/2 for who offers it, HTTP/1.1 for all others, on one port."""
    settings = {"VELOX_WORKERS": "1", "VELOX_LISTEN_HTTP2": "on", "VELOX_HTTP2_ENGINE": engine}
    with start_sim() as sim, VeloxProcess({**files.env(), **settings, "VELOX_UPSTREAM_ORIGIN": sim.url}) as velox:
        for http2, version in ((True, "HTTP/2"), (False, "HTTP/1.1")):
            transport = openai.DefaultHttpxClient(verify=files.context(), trust_env=False, http2=http2)
            base_url = f"{velox.base_url}/v1"
            with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, http_client=transport) as sdk:
                for _ in range(3):
                    answer = sdk.chat.completions.with_raw_response.create(model="velox-sim", messages=MESSAGES)
                    assert answer.http_response.http_version == version
                chunks = list(sdk.chat.completions.create(model="velox-sim", messages=MESSAGES, stream=True))
                assert len(chunks) > 3 and chunks[-1].choices[0].finish_reason == "stop"
        velox.wait_metric('velox_tls_handshakes_total{resumed="no"}', lambda n: n == 2)


def test_websocket_passes_over_tls(files: TlsFiles) -> None:
    """A tunnel above our TLS: messages of every size, both ways at once, and both closing handshakes."""
    with WebSocketUpstream() as upstream, VeloxProcess({**upstream.env(), **files.env()}) as velox:
        with connect(velox, context=files.context()) as ws:
            for message in ("hello", b"\x00\xff" * 100, os.urandom(1 << 19)):
                for _ in range(3):
                    ws.send(message)
                assert [ws.recv(20) for _ in range(3)] == [message] * 3
        assert upstream.wait_session().wait_closed() == (1000, "")
        velox.wait_metric("velox_client_connections", lambda n: n == 0)


def test_sdk_that_does_not_trust_the_certificate_sends_nothing(velox: VeloxProcess) -> None:
    """And the gateway counts that it was refused."""
    before = failures(velox)["refused"]
    with tls_sdk(velox, ssl.create_default_context()) as sdk, pytest.raises(openai.APIConnectionError):
        sdk.models.list()
    velox.wait_metric('velox_tls_handshake_failures_total{cause="refused"}', lambda n: n == before + 1)


def test_curl_and_openssl_agree(velox: VeloxProcess, files: TlsFiles, tmp_path: Path) -> None:
    """Other clients than ours: HTTP/1.1 is chosen by ALPN, TLS 1.1 is refused, TLS 1.2 and 1.3 are not."""
    if not (shutil.which("curl") and shutil.which("openssl")):
        pytest.skip("needs curl and openssl")
    authority = tmp_path / "ca.pem"
    files.authority.cert_pem.write_to_path(str(authority))
    for options in (["--tlsv1.3"], ["--tls-max", "1.2"], ["--http1.1"]):
        command = ["curl", "--silent", "--noproxy", "*", "--cacert", str(authority), *options]
        done = subprocess.run([*command, f"{velox.base_url}/v1/models"], capture_output=True, timeout=20, check=False)
        assert done.returncode == 0 and json.loads(done.stdout)["data"], (options, done)

    def hello(*options: str) -> str:
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{velox.port}", "-CAfile", str(authority), *options]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
        return (done.stdout + done.stderr).decode(errors="replace")

    assert "ALPN protocol: http/1.1" in hello("-alpn", "h2,http/1.1")
    assert "Verify return code: 0 (ok)" in hello("-tls1_2")
    assert "alert protocol version" in hello("-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
    assert "alert handshake failure" in hello("-tls1_2", "-cipher", "AES128-SHA")


@covers("VELOX_TLS_CLIENT_CA")
def test_only_clients_with_a_certificate_get_in(files: TlsFiles) -> None:
    """None, one that somebody else signed, one of ours."""
    with VeloxProcess({**files.env(client_ca=True), "VELOX_WORKERS": "1"}, SIM) as velox:
        for shows in (None, trustme.CA()):
            with tls_sdk(velox, files.context(shows=shows)) as sdk, pytest.raises(openai.APIConnectionError):
                sdk.models.list()
        velox.wait_metric('velox_tls_handshake_failures_total{cause="client_certificate"}', lambda n: n == 2)
        assert velox.metric('velox_requests_total{class="2xx",reason="ok",route="models"}') == 0
        with tls_sdk(velox, files.context(shows=files.clients)) as sdk:
            assert sdk.models.list().data


# -- who speaks something else --------------------------------------------------------------------------------


def test_plain_http_is_told_to_use_https(velox: VeloxProcess) -> None:
    """B-23: with the SDK's usual error, and nothing of the request is looked at."""
    plain = openai.OpenAI(
        base_url=f"http://127.0.0.1:{velox.port}/v1",
        api_key=KEY,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=NO_TRUST, trust_env=False),
    )
    with plain, pytest.raises(openai.BadRequestError) as raised:
        plain.chat.completions.create(model="m", messages=MESSAGES)
    assert "https://" in raised.value.message and raised.value.code == "bad_framing"
    with velox.connect() as sock:
        sock.sendall(GET)
        reply = read_reply(sock)
        assert reply.status == 400 and reply.header("x-velox-reason") == "bad_framing"
        assert sock.recv(1) == b""


def test_tls_on_the_plain_port_ends_cleanly() -> None:
    """B-23: the client reads no TLS and gives up; the gateway refuses it as the bad request that it is."""
    with VeloxProcess({"VELOX_WORKERS": "1"}, SIM) as velox, velox.still_healthy():
        for _ in range(20):
            with velox.connect() as sock, pytest.raises(ssl.SSLError):
                ssl.create_default_context().wrap_socket(sock, server_hostname="127.0.0.1")
        refused = 'velox_requests_total{class="4xx",reason="bad_framing",route="other"}'
        velox.wait_metric(refused, lambda n: n == 20)
        velox.wait_metric("velox_client_connections", lambda n: n == 0)


def test_flood_of_bad_handshakes_is_counted_and_writes_next_to_nothing(files: TlsFiles) -> None:
    """B-23: 600 connections that fail in every way; a line in the log for each worker, no traceback, no leak."""

    def leave(sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    ways: dict[str, Callable[[socket.socket], object]] = {
        "plain_http": lambda sock: sock.sendall(GET),
        "not_tls": lambda sock: sock.sendall(os.urandom(3).join((b"\x17", b"\x03" * 500))),
        "other": lambda sock: sock.sendall(b"\x16\x03\x01\x00\x10" + b"\xff" * 16),
        "closed": lambda sock: (sock.sendall(b"\x16\x03\x01"), leave(sock)),
    }
    settings = {"VELOX_WORKERS": "2", "VELOX_HEADER_TIMEOUT": "500ms", "VELOX_ACCESS_LOG": "all"}
    with VeloxProcess({**files.env(), **settings}, SIM) as velox:
        for _ in range(150):
            for way in ways.values():
                with velox.connect() as sock:
                    way(sock)
        silent = [velox.connect() for _ in range(50)]
        for cause in (*ways, "timeout"):
            n = 50 if cause == "timeout" else 150
            sample = f'velox_tls_handshake_failures_total{{cause="{cause}"}}'
            velox.wait_metric(sample, lambda found, n=n: found == n)
        for sock in silent:
            sock.close()
        velox.wait_metric("velox_client_connections", lambda n: n == 0)
        lines = [line for line in velox.stderr.lines if "ready in" not in line]
        assert len(lines) <= 4 and all("TLS handshakes" in line or "open files" in line for line in lines), lines
        assert velox.stdout.lines == []
        with tls_sdk(velox, files.context()) as sdk:
            assert sdk.models.list().data


# -- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_connections_that_come_and_go_leave_memory_as_it_was(files: TlsFiles) -> None:
    """2,000 connections with a handshake and a request each; the first 500 fill what is kept for later."""
    settings = {"VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0"}
    with VeloxProcess({**files.env(), **settings}, SIM) as velox:
        (worker,) = velox.worker_pids()
        context = files.context()
        before = 0
        for n in range(2000):
            with tls_connect(velox, context) as secured:
                secured.sendall(GET)
                secured.recv(65536)
            if n == 500:
                before = resident_bytes(worker)
        velox.wait_metric("velox_client_connections", lambda n: n == 0)
        assert resident_bytes(worker) - before < 1 << 20


# -- starting -----------------------------------------------------------------------------------------------------


def test_certificate_that_can_not_be_used_is_no_start(files: TlsFiles, tmp_path: Path) -> None:
    """One line, before anything is started; nothing of the key."""
    other = tmp_path / "other.key"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other))

    done = run_velox({**files.env(), "VELOX_TLS_KEY": str(other)}, *SIM)

    assert done.returncode == 2
    assert "VELOX_TLS_KEY" in done.stderr and "another one's" in done.stderr and "PRIVATE" not in done.stderr
