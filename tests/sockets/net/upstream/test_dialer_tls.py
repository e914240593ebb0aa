"""TLS with an upstream: whom it trusts (F-6, F-8), what it shows, what it resumes, and that it never hangs (F-7)."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import datetime
import gc
import socket
import ssl
import time
import warnings
from pathlib import Path
from typing import ClassVar, Final

import pytest
import trustme

from tests.patience import PATIENCE_S
from tests.sockets.net.dialing import Owner, TlsServer, dialed, dialer_to, is_through, local, nothing_left, run
from velox.errors import Reason
from velox.net.upstream.dialer import Dialer
from velox.net.upstream.interface import UpstreamConnection, UpstreamFailure
from velox.net.upstream.tls import SharedContexts, UpstreamContext, upstream_context
from velox.outcomes import ConnectionEnd, Retry

HOST = "upstream.test"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Who signs."""
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its certificate."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def server_context(leaf: trustme.LeafCert, *alpn: str) -> ssl.SSLContext:
    """Return the context of a server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def tls_dialer(server: TlsServer, context: UpstreamContext, *, host: str = HOST) -> Dialer:
    """Return a dialer to a server of this test."""
    return dialer_to(local(server.port), context=context, host=host)


async def failure_of(dialer: Dialer) -> str:
    """Dial in vain at TLS; return the message."""
    with pytest.raises(UpstreamFailure) as caught:
        await dialer.dial(Owner())
    assert (caught.value.reason, caught.value.unprocessed) == (Reason.UPSTREAM_TLS, Retry.CONNECT)
    assert "127.0.0.1" not in caught.value.message
    return caught.value.message


async def talk(dialer: Dialer) -> None:
    """Dial, read what the server says (with TLS 1.3 its tickets come before it), and leave."""
    owner = Owner()
    await dialer.dial(owner)
    async with asyncio.timeout(PATIENCE_S):
        while not owner.closed:  # a byte that nobody asked for ends the connection
            await asyncio.sleep(0)


# -- whom it trusts ------------------------------------------------------------------------------------------


def test_server_of_plain_http_is_told_from_one_whose_tls_fails(ca_file: str) -> None:
    """An origin with https:// that should be http:// is a frequent mistake; OpenSSL's words lead to versions of TLS."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            dialer = dialer_to(local(server.sockets[0].getsockname()[1]), context=upstream_context("auto", ca_file))
            message = await failure_of(dialer)
        assert message.startswith("no TLS with the upstream: ")
        assert message.endswith(": what it sent is no TLS, as from a server of plain HTTP")

    run(scenario())


def test_certificate_that_is_right_is_trusted(authority: trustme.CA, ca_file: str) -> None:
    """With TLS 1.3, and the address noted."""

    async def scenario() -> None:
        context = upstream_context("auto", ca_file)
        async with TlsServer(server_context(authority.issue_cert(HOST))) as server:
            async with dialed(tls_dialer(server, context)) as connection:
                assert connection.address == "127.0.0.1"
                await server.wait_handshakes(1)
            assert server.versions == ["TLSv1.3"]

    run(scenario())


def _yesterday() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("expired", "certificate verification failed: certificate has expired"),
        ("wrong name", "certificate verification failed: Hostname mismatch"),
        ("unknown authority", "certificate verification failed: unable to get local issuer certificate"),
        ("old version", "the upstream closed the connection"),
    ],
)
def test_certificate_that_is_wrong_is_refused(authority: trustme.CA, ca_file: str, fault: str, words: str) -> None:
    """F-6: upstream_tls, the message says what is wrong; the server gets no byte of ours."""
    leaf = {
        "expired": lambda: authority.issue_cert(HOST, not_after=_yesterday()),
        "wrong name": lambda: authority.issue_cert("other.test"),
        "unknown authority": lambda: trustme.CA().issue_cert(HOST),
        "old version": lambda: authority.issue_cert(HOST),
    }[fault]()
    context = server_context(leaf)
    if fault == "old version":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the point: TLS 1.1 is deprecated
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("DEFAULT@SECLEVEL=0")

    async def scenario() -> None:
        async with TlsServer(context) as server, nothing_left():
            assert words in await failure_of(tls_dialer(server, upstream_context("auto", ca_file)))
            assert server.resumed == []

    run(scenario())


def test_certificate_that_rotates_is_not_noticed(authority: trustme.CA, ca_file: str) -> None:
    """F-8: the server comes back with another certificate and other ticket keys; the old session is offered in vain."""

    async def scenario() -> None:
        context = upstream_context("auto", ca_file)
        async with TlsServer(server_context(authority.issue_cert(HOST))) as before:
            await talk(tls_dialer(before, context))
        async with TlsServer(server_context(authority.issue_cert(HOST)), before.port) as after:
            await talk(tls_dialer(after, context))
            await talk(tls_dialer(after, context))
        assert (before.resumed, after.resumed) == ([False], [False, True])

    run(scenario())


def test_server_that_does_not_agree_to_http2_is_refused_where_it_is_demanded(
    authority: trustme.CA, ca_file: str
) -> None:
    """VELOX_UPSTREAM_HTTP2=on: never HTTP/1.1 instead."""

    async def scenario() -> None:
        async with TlsServer(server_context(authority.issue_cert(HOST))) as server, nothing_left():
            dialer = dialer_to(local(server.port), context=upstream_context("on", ca_file), host=HOST, http2="on")
            assert "did not agree to HTTP/2" in await failure_of(dialer)
            await server.__aexit__()

    run(scenario())


# -- time ----------------------------------------------------------------------------------------------------


def test_handshake_that_stalls_ends_with_its_timeout(ca_file: str) -> None:
    """F-7: the server takes the connection and says nothing."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with nothing_left(), asyncio.timeout(PATIENCE_S):
                context = upstream_context("auto", ca_file)
                dialer = dialer_to(local(silent.getsockname()[1]), context=context, tls_timeout_s=0.05)
                assert "handshake" in await failure_of(dialer)

    run(scenario())


def test_cancel_inside_the_handshake_leaves_nothing(ca_file: str) -> None:
    """The server has the ClientHello and does not answer; it sees the connection close."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            loop = asyncio.get_running_loop()
            async with nothing_left():
                dialer = dialer_to(local(silent.getsockname()[1]), context=upstream_context("auto", ca_file))
                dial = asyncio.create_task(dialer.dial(Owner()))
                accepted, _ = await loop.sock_accept(silent)
                with accepted:
                    hello = await loop.sock_recv(accepted, 65536)
                    assert hello[0] == 0x16  # a handshake record
                    dial.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await dial
                    async with asyncio.timeout(PATIENCE_S):
                        assert await loop.sock_recv(accepted, 65536) == b""

    run(scenario())


def test_cancel_at_any_turn_of_the_loop_leaves_nothing(authority: trustme.CA, ca_file: str) -> None:
    """A dial that succeeds, cancelled after 0, 1, 2, ... turns, until it is through before."""

    async def scenario() -> None:
        context = upstream_context("auto", ca_file)
        async with nothing_left():
            async with TlsServer(server_context(authority.issue_cert(HOST))) as server:
                n_turns = 0
                while not await is_through(tls_dialer(server, context), n_turns):
                    n_turns += 1
            assert n_turns > 3

    run(scenario())


def test_what_origins_trust_is_read_once_and_anew_when_its_file_has_changed(
    authority: trustme.CA, tmp_path: Path
) -> None:
    """A worker with 500 origins took 0.8 GB, and 10 ms of its loop for each origin that a reload brought."""
    ca_file, other = tmp_path / "ca.pem", trustme.CA()
    authority.cert_pem.write_to_path(str(ca_file))
    contexts = SharedContexts()

    def n_shared() -> int:
        return sum(type(each).__name__ == "_SharedContext" for each in gc.get_objects())

    gc.collect()  # those of other tests
    before = n_shared()
    many = [contexts.context("auto", str(ca_file)) for _ in range(50)]
    assert n_shared() == before + 1
    many.append(contexts.context("off", str(ca_file)))
    assert n_shared() == before + 2

    async def scenario() -> None:
        old, new = server_context(authority.issue_cert(HOST)), server_context(other.issue_cert(HOST))
        other.cert_pem.write_to_path(str(ca_file))
        async with TlsServer(old) as first, TlsServer(new) as second:
            context = contexts.context("auto", str(ca_file))
            await talk(tls_dialer(second, context))
            await talk(tls_dialer(first, many[0]))  # it goes on with what it was made of
            assert "verification failed" in await failure_of(tls_dialer(first, context))

    run(scenario())
    del many[:]
    gc.collect()
    assert n_shared() <= before + 1  # those of origins that are gone go, too


# -- sessions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_session_is_resumed(authority: trustme.CA, ca_file: str, version: ssl.TLSVersion) -> None:
    """The server itself says that the second and third handshake were short."""
    context = server_context(authority.issue_cert(HOST))
    context.maximum_version = version

    async def scenario() -> None:
        async with TlsServer(context) as server:
            dialer = tls_dialer(server, upstream_context("auto", ca_file))
            for _ in range(3):
                await talk(dialer)
            assert server.resumed == [False, True, True]

    run(scenario())


def test_session_is_resumed_while_the_connection_is_still_open(authority: trustme.CA, ca_file: str) -> None:
    """A second connection beside the first."""
    context = server_context(authority.issue_cert(HOST))
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # its session is there with the handshake

    async def scenario() -> None:
        async with TlsServer(context) as server:
            dialer = tls_dialer(server, upstream_context("auto", ca_file))
            async with dialed(dialer), dialed(dialer):
                await server.wait_handshakes(2)
            assert server.resumed == [False, True]

    run(scenario())


def test_session_is_not_offered_to_another_origin(authority: trustme.CA, ca_file: str) -> None:
    """Each origin has a context of its own, whatever they share; the very same server sees a whole handshake."""

    async def scenario() -> None:
        contexts = SharedContexts()
        async with TlsServer(server_context(authority.issue_cert(HOST, "b.test"))) as server:
            first, second = contexts.context("auto", ca_file), contexts.context("auto", ca_file)
            await talk(tls_dialer(server, first))
            await talk(tls_dialer(server, second, host="b.test"))
            await talk(tls_dialer(server, first))
            await talk(tls_dialer(server, second, host="b.test"))
            assert server.resumed == [False, False, True, True]

    run(scenario())


def test_failed_handshake_forgets_the_session(authority: trustme.CA, ca_file: str) -> None:
    """After a certificate that was refused even the server of before must show its own again."""
    good, bad = server_context(authority.issue_cert(HOST)), server_context(trustme.CA().issue_cert(HOST))

    async def scenario() -> None:
        context = upstream_context("auto", ca_file)
        async with TlsServer(good) as server:
            for _ in range(2):
                await talk(tls_dialer(server, context))
            async with TlsServer(bad) as other:
                await failure_of(tls_dialer(other, context))
            await talk(tls_dialer(server, context))
            assert server.resumed == [False, True, False]

    run(scenario())


def test_session_does_not_outlive_the_certificate(authority: trustme.CA, ca_file: str) -> None:
    """F-6: a resumed handshake shows no certificate; once the one that was verified has expired, it is asked for."""
    until = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(seconds=3)
    leaf = authority.issue_cert(HOST, not_after=until)

    async def scenario() -> None:
        async with TlsServer(server_context(leaf)) as server:
            dialer = tls_dialer(server, upstream_context("auto", ca_file))
            await talk(dialer)
            while time.time() <= until.timestamp() + 1:  # notAfter is inclusive (RFC 5280 §4.1.2.5)
                await asyncio.sleep(0.05)
            assert "expired" in await failure_of(dialer)

    run(scenario())


def test_session_that_is_too_large_to_keep_is_no_obstacle(authority: trustme.CA, ca_file: str) -> None:
    """Above 64 KB, here by its certificate, CPython can't read it: each handshake is a whole one."""
    names = [f"{number}.a-name-that-is-as-long-as-a-part-of-a-name-can-be-or-nearly.test" for number in range(1000)]

    async def scenario() -> None:
        async with TlsServer(server_context(authority.issue_cert(HOST, *names))) as server:
            dialer = tls_dialer(server, upstream_context("auto", ca_file))
            for _ in range(3):
                await talk(dialer)
            assert server.resumed == [False, False, False]

    run(scenario())


# -- what it leaves behind -----------------------------------------------------------------------------------


class TlsClient:
    """Shakes hands with a server in memory: what OpenSSL has allocated afterwards is the client's."""

    def __init__(self, context: UpstreamContext, server: ssl.SSLContext) -> None:
        self._context: Final = context
        self._server: Final = server
        self.n_resumed = 0

    def dial(self) -> None:
        """Do what a dialer does, and read one byte, so that tickets are read."""
        inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = self._context.wrap_bio(inside, outside, server_hostname=HOST)
        theirs = self._server.wrap_bio(outside, inside, server_side=True)
        is_done = [False, False]
        while not all(is_done):
            for number, side in enumerate((ours, theirs)):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
                    is_done[number] = True
        self._context.keep(ours)
        self.n_resumed += bool(ours.session_reused)
        theirs.write(b"x")
        assert ours.read(1) == b"x"


class MallocInfo(ctypes.Structure):
    """struct mallinfo2 of malloc.h: the fields before the one of interest, and those after."""

    _fields_: ClassVar = [
        ("before", ctypes.c_size_t * 7),
        ("in_use_bytes", ctypes.c_size_t),
        ("rest", ctypes.c_size_t * 2),
    ]


def allocated_bytes() -> int:
    """Return what malloc has given away and not got back: OpenSSL's memory above all, which Python can't see."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("needs mallinfo2 of glibc 2.33")
    libc.mallinfo2.restype = MallocInfo
    return int(libc.mallinfo2().in_use_bytes)


@pytest.mark.parametrize("takes", ["every ticket", "a ticket once", "no ticket"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_dials_leave_no_memory_behind(authority: trustme.CA, ca_file: str, version: ssl.TLSVersion, takes: str) -> None:
    """Each read of a session leaks a copy of it (gh-116810), and nothing tells what becomes of it but malloc."""
    n_dials = 300
    server = server_context(authority.issue_cert(HOST))
    server.maximum_version = version
    client = TlsClient(upstream_context("auto", ca_file), server)
    for _ in range(20):
        client.dial()
    assert client.n_resumed == 19
    if takes != "every ticket":
        server.options |= ssl.OP_NO_TICKET
    if takes == "no ticket":
        server.num_tickets = 0
    before = allocated_bytes()
    for _ in range(n_dials):
        client.dial()
    grown = allocated_bytes() - before
    assert grown / n_dials < 3000, f"{grown} bytes in {n_dials} dials"


@pytest.mark.parametrize("end", ["abort", "end of the upstream", "handshake", "cancel"])
def test_ended_connections_are_freed_without_the_collector(authority: trustme.CA, ca_file: str, end: str) -> None:
    """A cycle would keep 300 KB of buffers for each until the next collection, and a worker collects rarely."""

    async def once(dialer: Dialer, turns: int = -1) -> None:
        dial = asyncio.create_task(dialer.dial(Forgetful()))
        if end == "cancel" and turns >= 0:
            for _ in range(turns):
                await asyncio.sleep(0)
            dial.cancel()
        await asyncio.wait((dial,))  # to await the dial itself would hang this frame, and so the dial, on its failure
        if dial.cancelled() or dial.exception() is not None:
            return
        connection = dial.result()
        if end != "end of the upstream":
            connection.abort(ConnectionEnd.SHUTDOWN)
        async with asyncio.timeout(PATIENCE_S):
            while not connection.is_closed:
                await asyncio.sleep(0)

    async def scenario() -> None:
        leaf = (trustme.CA() if end == "handshake" else authority).issue_cert(HOST)
        server = await asyncio.start_server(_leave, "127.0.0.1", 0, ssl=server_context(leaf))
        port = server.sockets[0].getsockname()[1]
        dialer = dialer_to(local(port), context=upstream_context("auto", ca_file), host=HOST)
        try:
            await once(dialer)  # the context keeps what it will resume
            gc.collect()
            before = n_held()
            for turns in range(20):
                await once(dialer, turns)
            # uvloop leaves a cycle behind when it is cancelled in one certain turn of the handshake, once in some 250;
            # on a busy machine more of the 20 may meet it. A cycle of ours would be left by all.
            n_left = 10 if end == "cancel" else 0
            async with asyncio.timeout(PATIENCE_S):  # what is aborted ends some turns of the loop later
                while n_held() > before + n_left:
                    await asyncio.sleep(0.01)
        finally:
            server.close()

    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


class Forgetful:
    """Whom connections report to; keeps none."""

    def on_room(self, connection: UpstreamConnection) -> None:
        """Nobody waits."""

    def on_closed(self, connection: UpstreamConnection) -> None:
        """Nobody counts."""


async def _leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def n_held() -> int:
    """Return how many connections of dialers there are, and of TLS objects that hold a TLS connection's buffers."""
    return sum(type(each).__name__ in {"_SecuredObject", "Http1Connection"} for each in gc.get_objects())


# -- what it shows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_file", [True, False])
def test_client_certificate_is_shown(authority: trustme.CA, ca_file: str, tmp_path: Path, one_file: bool) -> None:
    """MTLS: the server verifies who we are, also in resumed sessions."""
    mine = authority.issue_cert("gateway.test")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if one_file:
        mine.private_key_and_cert_chain_pem.write_to_path(str(cert))
    else:
        mine.cert_chain_pems[0].write_to_path(str(cert))
        mine.private_key_pem.write_to_path(str(key))
    theirs = server_context(authority.issue_cert(HOST))
    theirs.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(theirs)

    async def scenario() -> None:
        async with TlsServer(theirs) as server:
            context = upstream_context("auto", ca_file, str(cert), None if one_file else str(key))
            for _ in range(2):
                await talk(tls_dialer(server, context))
            names = [client and client["subjectAltName"] for client in server.clients]
            assert names == [(("DNS", "gateway.test"),)] * 2
            assert server.resumed == [False, True]

    run(scenario())
