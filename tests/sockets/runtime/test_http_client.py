"""Questions of the gateway's own to metadata services and token endpoints, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trustme

from tests.fake_proxy import FakeProxy
from tests.patience import PATIENCE_S
from velox.providers.aws import AwsChain
from velox.providers.renewal import FetchError, HttpRequest
from velox.providers.sigv4 import AwsCredentials
from velox.runtime.http_client import HttpClient
from velox.settings.routing.proxies import environment_proxies

T = TypeVar("T")


class _Server:
    """Answers each request by its first line; remembers all of them. answers: bytes to send, b"" closes at once."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers
        self.asked: list[bytes] = []
        self.n_open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            n_body = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
            )
            self.asked.append(head + await reader.readexactly(n_body))
            line = " ".join(head.decode().split(" ")[:2])
            writer.write(self.answers.get(line, _reply(404, b"")))
            if self.answers.get(line) != b"":
                await reader.read()  # the client closes
        finally:
            self.n_open -= 1
            writer.close()


def _reply(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def _run(server: _Server, test: Callable[[HttpClient, int], Awaitable[T]], context: ssl.SSLContext | None = None) -> T:
    async def main() -> T:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
        port = listener.sockets[0].getsockname()[1]
        async with asyncio.timeout(PATIENCE_S):
            found = await test(HttpClient(), port)
            while server.n_open:
                await asyncio.sleep(0)
        listener.close()
        await listener.wait_closed()
        return found

    return asyncio.run(main())


def test_question_is_sent_and_its_connection_closed() -> None:
    server = _Server({"POST /x?a=b": _reply(400, b"why")})

    async def ask(client: HttpClient, port: int) -> None:
        reply = await client.ask(HttpRequest(b"POST", f"http://127.0.0.1:{port}/x?a=b", [(b"x-a", b"1")], b"body"))
        assert (reply.status, reply.body) == (400, b"why")
        assert server.asked[0].startswith(b"POST /x?a=b HTTP/1.1\r\n") and server.asked[0].endswith(b"\r\n\r\nbody")
        assert f"\r\nhost: 127.0.0.1:{port}\r\n".encode() in server.asked[0].lower()
        assert b"\r\nx-a: 1\r\n" in server.asked[0]

    _run(server, ask)


def test_question_without_answer_says_which_host_and_why() -> None:
    server = _Server({"GET /gone": b"", "GET /huge": _reply(200, b"x" * (2**20 + 1)), "GET /bad": b"nonsense\r\n\r\n"})

    async def ask(client: HttpClient, port: int) -> None:
        for path in ("/gone", "/huge", "/bad"):
            with pytest.raises(FetchError, match=r"^127\.0\.0\.1 was asked: "):
                await client.ask(HttpRequest(b"GET", f"http://127.0.0.1:{port}{path}"))

    _run(server, ask)

    async def nobody(client: HttpClient, port: int) -> None:
        with pytest.raises(FetchError, match="could not be reached"):
            await client.ask(HttpRequest(b"GET", "http://127.0.0.1:1/"))
        for url in ("nonsense", "ftp://127.0.0.1/", "http://"):
            with pytest.raises(FetchError, match="is no http or https URL"):
                await client.ask(HttpRequest(b"GET", url))
        for url in ("http://h:99999/", "http://h:x/", "http://[::1/"):
            with pytest.raises(FetchError, match="is no URL that can be asked: "):
                await client.ask(HttpRequest(b"GET", url))
        with pytest.raises(FetchError):
            await client.ask(HttpRequest(b"GET", f"http://127.0.0.1:{port}/", [(b"a", b"x\r\ny: z")]))

    _run(server, nobody)


def test_question_that_takes_too_long_is_given_up() -> None:
    server = _Server({"GET /slow": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"})

    async def ask(client: HttpClient, port: int) -> None:
        with pytest.raises(FetchError, match="in time"):
            await client.ask(HttpRequest(b"GET", f"http://127.0.0.1:{port}/slow", timeout_s=0.05))

    _run(server, ask)


def test_question_whose_answer_comes_byte_by_byte_is_given_up() -> None:
    """Each byte is in time, and the whole never."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.wait([asyncio.ensure_future(reader.read(65536))], timeout=0.01)
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(drip, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(FetchError, match="in time"):
                await HttpClient().ask(HttpRequest(b"GET", f"http://127.0.0.1:{port}/", timeout_s=0.2))
        listener.close()

    asyncio.run(main())


def test_question_goes_to_its_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No redirect is followed, no proxy of the environment used, no cookie sent back: credentials go nowhere else."""
    other = _Server({})
    moved = b"HTTP/1.1 307 X\r\nlocation: http://localhost:1/x\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
    server = _Server({"GET /moved": moved})

    async def ask(client: HttpClient, port: int) -> None:
        proxy = await asyncio.start_server(other.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, url)
        for _ in range(2):
            question = HttpRequest(b"GET", f"http://127.0.0.1:{port}/moved", [(b"authorization", b"Bearer s3cret")])
            assert (await client.ask(question)).status == 307
        proxy.close()

    _run(server, ask)
    assert other.asked == [] and len(server.asked) == 2
    assert all(b"cookie" not in asked.lower() for asked in server.asked)


def test_reason_has_no_header_body_or_query(caplog: pytest.LogCaptureFixture) -> None:
    """What the library says quotes what it could not write."""
    caplog.set_level(logging.INFO)
    server = _Server({"GET /gone?t=s3cret": b"", "GET /bad?t=s3cret": b"nonsense s3cret\r\n\r\n"})

    async def ask(client: HttpClient, port: int) -> None:
        base = f"http://127.0.0.1:{port}"
        for url, headers in (
            (f"{base}/gone?t=s3cret", []),
            (f"{base}/bad?t=s3cret", []),
            (f"{base}/", [(b"authorization", b"Bearer s3cret\r\nx: y")]),
            ("http://127.0.0.1:1/?t=s3cret", [(b"authorization", b"Bearer s3cret")]),
            ("http://h:x/?t=s3cret", []),
        ):
            with pytest.raises(FetchError) as caught:
                await client.ask(HttpRequest(b"GET", url, headers, b"s3cret"))
            shown = "".join(traceback.format_exception(type(caught.value), caught.value, None))
            assert "s3cret" not in caught.value.reason and "s3cret" not in shown

    _run(server, ask)
    assert "s3cret" not in caplog.text


def test_question_over_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def ask(client: HttpClient, port: int) -> int:
        return (await client.ask(HttpRequest(b"GET", f"https://127.0.0.1:{port}/"))).status

    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert _run(_Server({}), ask, context) == 404

    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))

    async def refused(client: HttpClient, port: int) -> None:
        with pytest.raises(FetchError, match="127"):
            await ask(client, port)

    _run(_Server({}), refused, context)


def test_files_are_read_up_to_a_bound(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"token\n")
    large.write_bytes(bytes(2**20 + 1))

    async def read(client: HttpClient, port: int) -> None:
        assert await client.read(str(small)) == b"token\n"
        assert await client.read(str(tmp_path / "none")) is None
        with pytest.raises(FetchError, match="more than 1048576 bytes"):
            await client.read(str(large))
        with pytest.raises(FetchError, match="can't be read"):
            await client.read(str(tmp_path))

    _run(_Server({}), read)


def test_credentials_of_an_instance_over_real_sockets() -> None:
    roles = "/latest/meta-data/iam/security-credentials/"
    document = {
        "Code": "Success",
        "AccessKeyId": "A",
        "SecretAccessKey": "s",
        "Token": "t",
        "Expiration": "2030-01-01T00:00:00Z",
    }
    server = _Server(
        {
            "PUT /latest/api/token": _reply(200, b"imds"),
            f"GET {roles}": _reply(200, b"role"),
            f"GET {roles}role": _reply(200, json.dumps(document).encode()),
        }
    )

    async def fetch(client: HttpClient, port: int) -> AwsCredentials:
        env = {"HOME": "/nonexistent", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{port}"}
        return (await AwsChain(env, client, clock=lambda: 0.0, region="us-east-1")()).value

    assert _run(server, fetch) == AwsCredentials("A", "s", "t", 1893456000.0)
    assert len(server.asked) == 3 and b"\r\nx-aws-ec2-metadata-token: imds\r\n" in server.asked[2]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxy_of_the_environment_is_asked(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By absolute target or tunnel, with its credentials, which the server never gets; this machine has none."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("tokens.example").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    server = _Server({"GET /token": _reply(200, b"yes")})
    default = {"http": 80, "https": 443}[scheme]

    async def ask(direct: HttpClient, port: int) -> None:
        with FakeProxy({f"tokens.example:{default}": ("127.0.0.1", port)}, login="me:word") as proxy:
            url = proxy.url.replace("://", "://me:word@")
            proxies, _ = environment_proxies({"HTTP_PROXY": url, "HTTPS_PROXY": url})
            client = HttpClient(proxies)
            assert (await client.ask(HttpRequest(b"GET", f"{scheme}://tokens.example/token"))).body == b"yes"
            assert proxy.asked[-1].method == ("GET" if scheme == "http" else "CONNECT")
            n_asked = len(proxy.asked)
            if scheme == "http":
                assert (await client.ask(HttpRequest(b"GET", f"http://127.0.0.1:{port}/token"))).status == 200
            assert len(proxy.asked) == n_asked
        assert b"authorization" not in b"".join(server.asked).lower()

    _run(server, ask, context if scheme == "https" else None)


def test_proxy_that_opens_no_tunnel_is_named_without_its_password() -> None:
    """It refuses, or is not there."""

    async def ask() -> list[str]:
        said = []
        with FakeProxy({}, login="me:other") as proxy:
            for url in (proxy.url.replace("://", "://me:p4ssw0rd@"), "http://me:p4ssw0rd@127.0.0.1:1"):
                client = HttpClient(environment_proxies({"HTTPS_PROXY": url})[0])
                with pytest.raises(FetchError) as failed:
                    await client.ask(HttpRequest(b"GET", "https://tokens.example/token"))
                said.append(str(failed.value).replace(proxy.url, "PROXY"))
        return said

    assert asyncio.run(ask()) == [
        "tokens.example was asked: the proxy PROXY (HTTPS_PROXY) opens no tunnel to it",
        "tokens.example was asked: it could not be reached by the proxy http://127.0.0.1:1 (HTTPS_PROXY):"
        " Connection refused",
    ]
