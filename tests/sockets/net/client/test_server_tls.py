"""TLS with clients on real sockets: handshakes that fail, replies that end, clients that are slow or hostile."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import ssl
import weakref
from collections.abc import Callable

import pytest
import trustme
import uvloop

from tests.sockets.net.core_ingress import App, Exchange, eventually
from tests.sockets.net.tls_ingress import TlsClient, TlsServer, certificate_of, serve_tls
from velox.net.client.tls import TlsConnection
from velox.net.client.tls_context import ServerCertificate, renewed_context
from velox.outcomes import TlsFailure

GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
OLD_GET = b"GET /v1/models HTTP/1.0\r\nHost: a\r\n\r\n"
KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA) -> ServerCertificate:
    return certificate_of(authority.issue_cert("localhost"))


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """What clients trust that trust us."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def connect(server: TlsServer, context: ssl.SSLContext, *, receive_bytes: int = 0) -> TlsClient:
    return TlsClient(await server.connect(receive_bytes=receive_bytes), context)


def whole(body: bytes) -> Callable[[Exchange], None]:
    """A script: this body, as a whole."""
    return lambda exchange: exchange.answer(body)


# -- requests and replies -----------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", [0, 1, 16 * KIB, 16 * KIB + 1, 3 * MIB])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_replies_of_every_size_arrive_whole(
    certificate: ServerCertificate, trusting: ssl.SSLContext, n_bytes: int, version: ssl.TLSVersion
) -> None:
    """Below, at and above what one record holds; and the connection serves another request."""
    trusting.maximum_version = version
    body = bytes(range(256)) * (n_bytes // 256 + 1)
    body = body[:n_bytes]

    async def main() -> None:
        app = App(whole(body))
        async with serve_tls(TlsServer(app, certificate)) as server:
            client = await (await connect(server, trusting)).handshake()
            for _ in range(2):
                await client.send(GET)
                got = b""
                while b"\r\n\r\n" not in got or len(got.partition(b"\r\n\r\n")[2]) < n_bytes:
                    data = await client.recv()
                    assert data, client.end
                    got += data
                assert got.partition(b"\r\n\r\n")[2] == body
            assert (server.resumed, server.failures) == ([False], [])
            client.close()

    uvloop.run(main())


@pytest.mark.parametrize("n_bytes", [1, 100 * KIB, 700 * KIB])
def test_request_in_many_records_arrives_whole(
    certificate: ServerCertificate, trusting: ssl.SSLContext, n_bytes: int
) -> None:
    """Records that come together, and one that is cut by the end of a read."""

    async def main() -> None:
        app = App(whole(b"ok"))
        async with serve_tls(TlsServer(app, certificate)) as server:
            client = await (await connect(server, trusting)).handshake()
            await client.send(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % n_bytes)
            body = bytes(n_bytes)
            for at in range(0, n_bytes, 9999):
                client.tls.write(body[at : at + 9999])
            data = client.outgoing.read()
            loop = asyncio.get_running_loop()
            for at in range(0, len(data), 70_001):
                await loop.sock_sendall(client.sock, data[at : at + 70_001])
            assert (await client.recv()).endswith(b"ok")
            assert app.exchanges[0].body == body
            client.close()

    uvloop.run(main())


def test_request_that_comes_with_the_end_of_the_handshake_is_served(
    certificate: ServerCertificate, trusting: ssl.SSLContext
) -> None:
    """TLS 1.3: the client's Finished and its request in one packet."""

    async def main() -> None:
        async with serve_tls(TlsServer(App(whole(b"ok")), certificate)) as server:
            client = await connect(server, trusting)
            flush, client.flush = client.flush, _nothing  # type: ignore[method-assign]
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.do_handshake()
            await flush()
            while True:
                client.incoming.write(await asyncio.get_running_loop().sock_recv(client.sock, 1 << 16))
                try:
                    client.tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    pass
            client.tls.write(GET)
            await flush()
            assert (await client.recv()).endswith(b"ok")
            client.close()

    async def _nothing() -> None:
        pass

    uvloop.run(main())


# -- handshakes that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "cause", "reply"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", TlsFailure.PLAIN_HTTP, b"https://"),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", TlsFailure.PLAIN_HTTP, b"https://"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", TlsFailure.PLAIN_HTTP, b"https://"),
        (b"\x80\x2e\x01\x00\x02", TlsFailure.NOT_TLS, b""),
        (b"SSH-2.0-OpenSSH_9.2\r\n", TlsFailure.NOT_TLS, b""),
        (b"\0" * 70_000, TlsFailure.NOT_TLS, b""),
        (b"\x16\x03\x01\x00\x05hello", TlsFailure.OTHER, b"\x15\x03"),
        (b"\x16\x03\x01\xff\xff" + bytes(70_000), TlsFailure.OTHER, b"\x15\x03"),
    ],
)
def test_bytes_that_are_no_handshake_end_the_connection(
    certificate: ServerCertificate, sent: bytes, cause: TlsFailure, reply: bytes
) -> None:
    """B-23: a request in plain text is told what is wrong, all else gets an alert at most; each is counted once."""

    async def main() -> None:
        app = App()
        async with serve_tls(TlsServer(app, certificate)) as server:
            loop = asyncio.get_running_loop()
            sock = await server.connect()
            await loop.sock_sendall(sock, sent)
            got = b""
            while data := await loop.sock_recv(sock, 1 << 16):
                got += data
            assert reply in got and (reply or not got)
            sock.close()
            await eventually(lambda: not server.ingress.connections)
            assert (server.failures, app.exchanges, app.errors) == ([cause], [], [])

    uvloop.run(main())


@pytest.mark.parametrize("n_sent", [0, 1, 100])
def test_handshake_that_stalls_is_ended(certificate: ServerCertificate, trusting: ssl.SSLContext, n_sent: int) -> None:
    """With no byte, one, or half of it."""

    async def main() -> None:
        async with serve_tls(TlsServer(App(), certificate, header_s=0.3)) as server:
            client = await connect(server, trusting)
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.do_handshake()
            await asyncio.get_running_loop().sock_sendall(client.sock, client.outgoing.read()[:n_sent])
            assert await asyncio.get_running_loop().sock_recv(client.sock, 100) == b""
            client.close()
            await eventually(lambda: not server.ingress.connections)
            assert server.failures == [TlsFailure.TIMEOUT]

    uvloop.run(main())


@pytest.mark.parametrize(("n_sent", "failures"), [(0, []), (50, [TlsFailure.CLOSED])])
def test_client_that_leaves_before_the_handshake_has_ended(
    certificate: ServerCertificate, trusting: ssl.SSLContext, n_sent: int, failures: list[TlsFailure]
) -> None:
    """One that sent nothing is a probe of a load balancer, and no failure."""

    async def main() -> None:
        async with serve_tls(TlsServer(App(), certificate)) as server:
            client = await connect(server, trusting)
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.do_handshake()
            await asyncio.get_running_loop().sock_sendall(client.sock, client.outgoing.read()[:n_sent])
            await eventually(lambda: len(server.ingress.connections) == 1)
            client.close()
            await eventually(lambda: not server.ingress.connections)
            assert server.failures == failures

    uvloop.run(main())


def test_client_that_does_not_trust_us_is_counted_as_that(certificate: ServerCertificate) -> None:
    """The most usual failure of all: it says so with an alert."""

    async def main() -> None:
        async with serve_tls(TlsServer(App(), certificate)) as server:
            client = await connect(server, ssl.create_default_context())
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.handshake()
            await client.flush()
            await eventually(lambda: server.failures == [TlsFailure.REFUSED])
            client.close()
            await eventually(lambda: not server.ingress.connections)

    uvloop.run(main())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_and_weak_ciphers_are_refused(certificate: ServerCertificate, trusting: ssl.SSLContext) -> None:
    """TLS 1.1, and TLS 1.2 without forward secrecy or authenticated encryption."""

    async def main() -> None:
        async with serve_tls(TlsServer(App(), certificate)) as server:
            for ciphers, version in (
                ("ALL:@SECLEVEL=0", ssl.TLSVersion.TLSv1_1),
                ("AES128-GCM-SHA256", ssl.TLSVersion.TLSv1_2),
                ("ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES128-SHA", ssl.TLSVersion.TLSv1_2),
            ):
                trusting.set_ciphers(ciphers)
                trusting.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
                trusting.maximum_version = version
                client = await connect(server, trusting)
                with pytest.raises(ssl.SSLError, match="ALERT"):
                    await client.handshake()
                client.close()
            await eventually(lambda: not server.ingress.connections)
            assert server.failures == [TlsFailure.VERSION, TlsFailure.CIPHER, TlsFailure.CIPHER]

    uvloop.run(main())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificate_is_required_of_everyone(authority: trustme.CA, version: ssl.TLSVersion) -> None:
    """None, somebody else's, and one of ours; what is refused never reaches the application, and is told so."""
    clients, strangers = trustme.CA(), trustme.CA()
    certificate = certificate_of(authority.issue_cert("localhost"), clients)

    def shown(leaf: trustme.LeafCert | None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.maximum_version = version
        authority.configure_trust(context)
        if leaf is not None:
            leaf.configure_cert(context)
        return context

    async def main() -> None:
        app = App(whole(b"welcome"))
        async with serve_tls(TlsServer(app, certificate)) as server:
            for leaf in (None, strangers.issue_cert("app.test")):
                client = await connect(server, shown(leaf))
                # TLS 1.3: the client learns it with its first read, after it has sent its request.
                with pytest.raises(ssl.SSLError, match="ALERT"):
                    await client.handshake()
                    await client.send(GET)
                    await client.recv()
                client.close()
            assert server.failures == [TlsFailure.CLIENT_CERTIFICATE] * 2 and app.exchanges == []
            client = await (await connect(server, shown(clients.issue_cert("app.test")))).handshake()
            await client.send(GET)
            assert (await client.recv()).endswith(b"welcome")
            client.close()

    uvloop.run(main())


def test_connections_beyond_the_limit_cost_no_handshake(
    certificate: ServerCertificate, trusting: ssl.SSLContext
) -> None:
    """Silent ones count from the accept on, and give their place back."""

    async def main() -> None:
        server = TlsServer(App(whole(b"ok")), certificate, max_connections=3)
        async with serve_tls(server):
            silent = [await server.connect() for _ in range(3)]
            await eventually(lambda: len(server.ingress.connections) == 3)
            client = await connect(server, trusting)
            with pytest.raises(ConnectionError):
                await client.handshake()
            client.close()
            assert server.failures == [TlsFailure.LIMIT]
            silent.pop().close()
            await eventually(lambda: len(server.ingress.connections) == 2)
            client = await (await connect(server, trusting)).handshake()
            await client.send(GET)
            assert (await client.recv()).endswith(b"ok")
            for sock in (*silent, client):
                sock.close()

    uvloop.run(main())


# -- how connections end --------------------------------------------------------------------------------


def test_reply_that_ends_the_connection_says_that_it_is_whole(
    certificate: ServerCertificate, trusting: ssl.SSLContext
) -> None:
    """An HTTP/1.0 client without a length has only close_notify to tell a whole reply from a cut one."""

    def script(exchange: Exchange) -> None:
        exchange.client.begin_reply(200, [], None, b"all of it", True, has_body=True)
        exchange.client.finish()

    async def main() -> None:
        async with serve_tls(TlsServer(App(script), certificate)) as server:
            client = await (await connect(server, trusting)).handshake()
            await client.send(OLD_GET)
            assert (await client.read_to_end()).endswith(b"all of it")
            assert client.end == "close_notify"
            client.close()
            await eventually(lambda: not server.ingress.connections)

    uvloop.run(main())


@pytest.mark.parametrize("request_bytes", [GET, OLD_GET])
def test_reply_that_is_cut_never_looks_whole(
    certificate: ServerCertificate, trusting: ssl.SSLContext, request_bytes: bytes
) -> None:
    """Where only the end of the connection ends it, there is no close_notify; else the framing is open (F-14)."""

    def script(exchange: Exchange) -> None:
        exchange.client.begin_reply(200, [], None, b"part of it", False, has_body=True)
        asyncio.get_running_loop().call_soon(exchange.client.cut, b"")

    async def main() -> None:
        async with serve_tls(TlsServer(App(script), certificate)) as server:
            client = await (await connect(server, trusting)).handshake()
            await client.send(request_bytes)
            got = await client.read_to_end()
            if request_bytes == OLD_GET:
                assert client.end in ("reset", "fin")
            else:
                assert b"transfer-encoding: chunked" in got and not got.endswith(b"0\r\n\r\n")
            client.close()

    uvloop.run(main())


@pytest.mark.parametrize("leaves", ["close_notify", "fin", "reset"])
def test_client_that_leaves_is_gone(certificate: ServerCertificate, trusting: ssl.SSLContext, leaves: str) -> None:
    """However it says so, its exchange is told at once."""

    async def main() -> None:
        app = App()
        async with serve_tls(TlsServer(app, certificate)) as server:
            client = await (await connect(server, trusting)).handshake()
            await client.send(GET)
            await eventually(lambda: len(app.exchanges) == 1)
            if leaves == "close_notify":
                await client.say_goodbye()
            elif leaves == "fin":
                client.sock.shutdown(socket.SHUT_WR)
            else:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.close()
            await asyncio.wait_for(app.exchanges[0].gone.wait(), 5)
            await eventually(lambda: not server.ingress.connections)
            client.close()

    uvloop.run(main())


def test_record_that_nobody_with_the_keys_has_made_ends_the_connection(
    certificate: ServerCertificate, trusting: ssl.SSLContext
) -> None:
    """One flipped bit: nothing of it reaches the application."""

    async def main() -> None:
        app = App(whole(b"ok"))
        async with serve_tls(TlsServer(app, certificate)) as server:
            client = await (await connect(server, trusting)).handshake()
            client.tls.write(GET)
            record = bytearray(client.outgoing.read())
            record[-1] ^= 1
            await asyncio.get_running_loop().sock_sendall(client.sock, bytes(record))
            assert await client.recv() == b"" and client.end in ("reset", "fin")
            assert app.exchanges == []
            client.close()

    uvloop.run(main())


# -- slow and hostile ones --------------------------------------------------------------------------------


def test_slow_reader_is_held_in_as_little_memory_as_without_tls(
    certificate: ServerCertificate, trusting: ssl.SSLContext
) -> None:
    """Our buffers stop at the usual mark, and no ciphertext waits anywhere else."""
    chunk = bytes(16 * KIB)

    async def main() -> None:
        app = App()
        async with serve_tls(TlsServer(app, certificate)) as server:
            client = await (await connect(server, trusting, receive_bytes=4096)).handshake()
            await client.send(GET)
            await eventually(lambda: len(app.exchanges) == 1)
            exchange = app.exchanges[0]
            exchange.client.begin_reply(200, [], None, b"", False, has_body=True)
            n_written = 0
            while not exchange.paused.is_set():
                exchange.client.body(chunk, False)
                n_written += len(chunk)
                await asyncio.sleep(0)
            (connection,) = server.ingress.connections
            transport = connection._transport  # type: ignore[attr-defined]
            assert isinstance(transport, TlsConnection)
            assert 64 * KIB <= transport.get_write_buffer_size() <= 64 * KIB + 2 * len(chunk)
            assert transport._outgoing.pending == 0
            got = 0
            while got < n_written:
                got += len(await client.recv())
            assert exchange.n_resumed == 1
            exchange.client.body(b"", True)
            exchange.client.finish()
            last = b""
            while not last.endswith(b"0\r\n\r\n"):
                last = last[-8:] + await client.recv()
            client.close()

    uvloop.run(main())


def test_reader_that_takes_nothing_is_cut(certificate: ServerCertificate, trusting: ssl.SSLContext) -> None:
    """F-45: after the write time-out, with a reset; the exchange is told why."""

    async def main() -> None:
        app = App(whole(bytes(8 * MIB)))
        async with serve_tls(TlsServer(app, certificate, write_s=0.3)) as server:
            client = await (await connect(server, trusting, receive_bytes=4096)).handshake()
            await client.send(GET)
            await eventually(lambda: bool(app.exchanges) and not server.ingress.connections)
            await client.read_to_end()
            assert client.end in ("reset", "fin")
            client.close()

    uvloop.run(main())


def test_client_that_leaves_while_it_is_written_to_is_gone(
    certificate: ServerCertificate, trusting: ssl.SSLContext
) -> None:
    """With its buffers full, long before the write time-out."""

    async def main() -> None:
        app = App()
        async with serve_tls(TlsServer(app, certificate, write_s=60.0)) as server:
            client = await (await connect(server, trusting, receive_bytes=4096)).handshake()
            await client.send(GET)
            await eventually(lambda: len(app.exchanges) == 1)
            exchange = app.exchanges[0]
            exchange.client.begin_reply(200, [], None, bytes(8 * MIB), False, has_body=True)
            await asyncio.wait_for(exchange.paused.wait(), 5)
            client.close()
            await asyncio.wait_for(exchange.gone.wait(), 5)
            await eventually(lambda: not server.ingress.connections)

    uvloop.run(main())


def test_client_that_asks_for_new_keys_must_take_the_answers(certificate: ServerCertificate) -> None:
    """KeyUpdate (RFC 8446 §4.6.3): each is answered, so one who takes no answers is not read from any more."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl: the ssl module can't ask for new keys")

    async def main() -> None:
        server = TlsServer(App(whole(b"ok")), certificate)
        made: list[TlsConnection] = []
        make = server.tls.connection

        def noted() -> TlsConnection:
            made.append(make())
            return made[-1]

        server.tls.connection = noted  # type: ignore[method-assign]
        async with serve_tls(server):
            command = (openssl, "s_client", "-connect", f"127.0.0.1:{server.address[1]}", "-tls1_3")
            pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
            client = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=null, stderr=null)
            assert client.stdin is not None
            await eventually(lambda: server.resumed == [False])
            (connection,) = made
            connection.pause_writing()  # what the loop says when the client takes nothing
            stdin = client.stdin

            def asked() -> bool:
                stdin.write(b"K\n")  # one for each of its reads
                return not connection.is_reading()

            await eventually(asked)
            connection.resume_writing()
            assert connection.is_reading()
            client.terminate()
            await client.wait()
            client.stdin.close()
            await eventually(lambda: not server.ingress.connections)

    asyncio.run(main())


def test_connections_that_ended_leave_nothing_behind(certificate: ServerCertificate, trusting: ssl.SSLContext) -> None:
    """No cycle holds their TLS: a worker collects rarely."""
    made: list[weakref.ref[TlsConnection]] = []

    async def main() -> None:
        server = TlsServer(App(whole(b"ok")), certificate)
        make = server.tls.connection

        def noted() -> TlsConnection:
            connection = make()
            made.append(weakref.ref(connection))
            return connection

        server.tls.connection = noted  # type: ignore[method-assign]
        async with serve_tls(server):
            for ends in ("goodbye", "fin", "plain", "silent"):
                client = await connect(server, trusting)
                if ends == "plain":
                    await asyncio.get_running_loop().sock_sendall(client.sock, GET)
                elif ends != "silent":
                    await client.handshake()
                    await client.send(GET)
                    await client.recv()
                    if ends == "goodbye":
                        await client.say_goodbye()
                client.close()
            await eventually(lambda: len(made) == 4 and not server.ingress.connections)
            await asyncio.sleep(0)
            assert [connection() for connection in made] == [None] * 4

    gc.disable()
    try:
        uvloop.run(main())
    finally:
        gc.enable()


# -- sessions and other certificates ------------------------------------------------------------------------


def test_session_outlives_a_new_certificate_of_the_same_kind(authority: trustme.CA) -> None:
    """The context keeps its ticket keys; the next whole handshake shows the new certificate."""
    first, second = (certificate_of(authority.issue_cert("localhost")) for _ in range(2))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def main() -> None:
        async with serve_tls(TlsServer(App(whole(b"ok")), first)) as server:
            client = await (await connect(server, trusting)).handshake()
            await client.send(GET)
            await client.recv()
            session, shown = client.tls.session, client.tls.getpeercert(True)
            context = server.tls.context
            server.tls.context = renewed_context(context, first, second, ("http/1.1",))
            assert server.tls.context is context
            resuming = TlsClient(await server.connect(), trusting)
            resuming.tls.session = session
            await resuming.handshake()
            anew = await (await connect(server, trusting)).handshake()
            await anew.send(GET)
            await anew.recv()
            assert server.resumed == [False, True, False]
            assert anew.tls.getpeercert(True) != shown
            await client.send(GET)  # the connection from before goes on
            assert (await client.recv()).endswith(b"ok")
            for each in (client, resuming, anew):
                each.close()

    uvloop.run(main())


def test_certificate_of_another_kind_leaves_nothing_of_the_old_one(authority: trustme.CA) -> None:
    """OpenSSL has a place for each kind of key: in the same context, some clients would still be shown the old one."""
    before = certificate_of(authority.issue_cert("localhost", key_type=trustme.KeyType.RSA))
    now = certificate_of(authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA))
    now = ServerCertificate(now.chain_pem, now.key_pem, b"", b"another kind", now.not_after_s)
    only_rsa = ssl.create_default_context()
    authority.configure_trust(only_rsa)
    only_rsa.maximum_version = ssl.TLSVersion.TLSv1_2
    only_rsa.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")

    async def main() -> None:
        async with serve_tls(TlsServer(App(), before)) as server:
            (await (await connect(server, only_rsa)).handshake()).close()
            server.tls.context = renewed_context(server.tls.context, before, now, ("http/1.1",))
            client = await connect(server, only_rsa)
            with pytest.raises(ssl.SSLError, match="ALERT"):
                await client.handshake()
            client.close()

    uvloop.run(main())


def test_drain_lets_handshakes_end_and_waits_for_no_silent_client(
    certificate: ServerCertificate, trusting: ssl.SSLContext
) -> None:
    """Who came before the drain is served; one that says nothing does not hold it up."""

    async def main() -> None:
        async with serve_tls(TlsServer(App(whole(b"ok")), certificate)) as server:
            silent = await server.connect()
            client = await connect(server, trusting)
            await eventually(lambda: len(server.ingress.connections) == 2)
            server.ingress.drain()
            await client.handshake()
            await client.send(GET)
            got = await client.read_to_end()
            assert b"connection: close" in got and got.endswith(b"ok") and client.end == "close_notify"
            client.close()
            await eventually(lambda: not server.ingress.connections)
            assert server.failures == []
            silent.close()

    uvloop.run(main())
