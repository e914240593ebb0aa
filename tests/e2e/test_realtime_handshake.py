"""Who gets a WebSocket, and what is asked of the upstream for it."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.e2e.harness import KEY, VeloxProcess, is_closed, read_reply
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import covers, free_port, reason
from tests.e2e.websocket_upstreams import (
    WS_ACCEPT,
    RawUpstream,
    WebSocketUpstream,
    connect,
    nothing_left,
    raw_handshake,
    read_head,
)
from tests.secret_watch import WATCH

OURS = "sk-of-the-gateway-itself"
TARGET = "/v1/realtime?model=m"
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n"
    % WS_ACCEPT.encode()
)


# -- what is not to the letter of RFC 6455 ------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording() -> Iterator[RecordingUpstream]:
    """An upstream that records what reaches it."""
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def strict(recording: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway in front of it."""
    with VeloxProcess({**recording.env(), "VELOX_WORKERS": "1"}) as running:
        running.wait_warm()
        yield running


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        (raw_handshake(upgrade="websocket, h2c"), 400),
        (raw_handshake(upgrade="h2c, websocket", connection="Upgrade, HTTP2-Settings", http2_settings="AA"), 400),
        (raw_handshake(connection=None), 400),
        (raw_handshake(connection="close"), 400),
        (raw_handshake(connection="Upgrade, Sec-WebSocket-Key"), 400),
        (raw_handshake(connection="Upgrade, Authorization"), 400),
        (raw_handshake(sec_websocket_key=None), 400),
        (raw_handshake(sec_websocket_key="c2hvcnQ="), 400),
        (raw_handshake(sec_websocket_version=None), 426),
        (raw_handshake(sec_websocket_version="8"), 426),
        (raw_handshake(sec_websocket_protocol="a,,b"), 400),
        (raw_handshake(content_length="3") + b"abc", 400),
        (raw_handshake(transfer_encoding="chunked") + b"0\r\n\r\n", 400),
        (raw_handshake(host=None), 400),
        (raw_handshake().replace(b"GET ", b"POST "), 400),
        (raw_handshake().replace(b" HTTP/1.1", b" HTTP/1.0"), 400),
        (raw_handshake("/v1/realtime?model=a&model=b"), 400),
        (raw_handshake("/v1/realtime?model=a&mod%65l=b"), 400),
        (raw_handshake("/v1/realtime?model=%ff"), 400),
        (raw_handshake("/v1/chat/completions"), 400),
        (raw_handshake("/v1/realtime/sessions"), 400),
        (raw_handshake("/v1/realtimes"), 400),
        (raw_handshake("/metrics"), 404),
        (raw_handshake("/v1/../v1/realtime"), 400),
        (raw_handshake(authorization="Bearer a", origin="null").replace(b"GET", b"TRACE"), 405),
    ],
)  # fmt: skip
def test_wrong_handshake_is_refused_and_nothing_goes_up(
    recording: RecordingUpstream, strict: VeloxProcess, wire: bytes, status: int
) -> None:
    """B-21: an answer of Velox's own, the connection closes, and the upstream hears nothing."""
    n_before = len(recording.calls)

    with strict.connect() as sock:
        # A request that would be served if what comes after a refused upgrade were read as one.
        sock.sendall(wire + b"GET /v1/smuggled HTTP/1.1\r\nhost: a\r\n\r\n")
        reply = read_reply(sock)
        assert is_closed(sock)

    assert (reply.status, bool(reason(reply))) == (status, True)
    if status == 426:
        assert (reply.header("sec-websocket-version"), reply.header("upgrade")) == ("13", "websocket")
    assert strict.request("GET", "/v1/models").status == 200
    assert len(recording.calls) == n_before + 1


# -- what goes up -------------------------------------------------------------------------------------------


def test_request_is_built_from_what_may_pass() -> None:
    """Our key, none of the client's, no claims; the handshake's fields once; the target as is."""
    heads = []

    def script(sock: socket.socket, head: bytes) -> None:
        heads.append(head)
        dropped = b"set-cookie: a=b\r\nx-velox-anything: 1\r\n"
        sock.sendall(SWITCHED + b"sec-websocket-protocol: b\r\n" + dropped + b"x-request-id: r1\r\n\r\n")
        sock.recv(1)

    with (
        RawUpstream(script) as upstream,
        VeloxProcess({**upstream.env(), "OPENAI_API_KEY": OURS, "VELOX_RATE_LIMIT_RPM": "600"}) as velox,
        velox.connect() as sock,
    ):
        more = {"x_api_key": "sk-client-1", "cookie": "a=b", "x_forwarded_for": "1.2.3.4"}
        more["openai_beta"] = "realtime=v1"
        sock.sendall(
            raw_handshake(
                "/prefix/v1/realtime?model=a%2Fb&x=%20",
                connection="keep-alive, Upgrade",
                authorization="Bearer sk-client-1",
                sec_websocket_protocol="a,b",
                sec_websocket_extensions="permessage-deflate; client_max_window_bits",
                **more,
            )
        )
        answer = read_head(sock)

    line, *fields = heads[0].decode().split("\r\n")[:-2]
    assert line == "GET /prefix/v1/realtime?model=a%2Fb&x=%20 HTTP/1.1"
    assert sorted(fields[1:]) == [
        f"authorization: Bearer {OURS}",
        "connection: Upgrade",
        "openai-beta: realtime=v1",
        "sec-websocket-extensions: permessage-deflate; client_max_window_bits",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-protocol: a, b",
        "sec-websocket-version: 13",
        "upgrade: websocket",
    ]
    status, *names = answer.decode().split("\r\n")[:-2]
    assert status == "HTTP/1.1 101 Switching Protocols"
    assert names[:5] == [
        "upgrade: websocket",
        "connection: Upgrade",
        f"sec-websocket-accept: {WS_ACCEPT}",
        "sec-websocket-protocol: b",
        "x-request-id: r1",
    ]
    assert [name.partition(":")[0] for name in names[5:]] == [
        "x-velox-request-id",
        "x-velox-upstream",
        "x-velox-attempts",
        *(f"x-ratelimit-{what}-requests" for what in ("limit", "remaining", "reset")),
    ]


# -- keys ---------------------------------------------------------------------------------------------------

ALICE, BOB = "vk-alice-0123456789", "vk-bob-0123456789"


@pytest.fixture(scope="module")
def echo() -> Iterator[WebSocketUpstream]:
    """A server that echoes, and takes the protocol of the realtime API."""
    with WebSocketUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def locked(echo: WebSocketUpstream) -> Iterator[VeloxProcess]:
    """A gateway that asks for keys."""
    WATCH.secret(ALICE, "a key in a protocol")
    env = {**echo.env(), "VELOX_API_KEYS": f"{ALICE},{BOB}", "OPENAI_API_KEY": OURS}
    with VeloxProcess(env) as running:
        yield running


def browser(key: str) -> list[str]:
    """The protocols that a page offers, because it can't set headers."""
    return ["realtime", f"openai-insecure-api-key.{key}", "openai-project.proj_1", "openai-beta.realtime-v1"]


def test_key_in_a_header_opens(echo: WebSocketUpstream, locked: VeloxProcess) -> None:
    """As for any request; it does not go up."""
    with connect(locked, authorization=f"Bearer {ALICE}") as ws:
        ws.send("hi")
        assert ws.recv() == "hi"

    headers = echo.wait_session().request.headers
    assert headers.get_all("Authorization") == [f"Bearer {OURS}"]


def test_key_of_a_browser_opens_and_stays_here(echo: WebSocketUpstream, locked: VeloxProcess) -> None:
    """C73: it is taken out of what is offered to the upstream, with the account it belongs to; the rest goes up."""
    with connect(locked, authorization=None, subprotocols=browser(ALICE), origin="https://app.example") as ws:
        assert ws.subprotocol == "realtime"

    headers = echo.wait_session().request.headers
    assert headers["Sec-WebSocket-Protocol"] == "realtime, openai-beta.realtime-v1"
    assert headers.get_all("Authorization") == [f"Bearer {OURS}"]
    assert ALICE not in str(headers)
    name = hashlib.sha256(ALICE.encode()).hexdigest()[:8]
    locked.wait_access(lambda line: line["caller"] == name and line["endpoint"] == "realtime")
    assert all(ALICE not in line for line in (*locked.stdout.lines, *locked.stderr.lines))


@pytest.mark.parametrize(
    ("authorization", "protocols", "status", "code"),
    [
        (None, None, 401, "auth_invalid"),
        ("Bearer sk-wrong", None, 401, "auth_invalid"),
        (None, browser("sk-wrong"), 401, "auth_invalid"),
        (None, browser(""), 401, "auth_invalid"),
        (None, ["realtime"], 401, "auth_invalid"),
        (f"Bearer {ALICE}", browser(BOB), 400, "bad_request"),
    ],
)
def test_without_a_good_key_nothing_goes_up(
    echo: WebSocketUpstream,
    locked: VeloxProcess,
    authorization: str | None,
    protocols: list[str] | None,
    status: int,
    code: str,
) -> None:
    """Two different credentials are one too many."""
    n_before = sum("realtime" in request.path for request in echo.requests)

    with pytest.raises(InvalidStatus) as refused, connect(locked, authorization=authorization, subprotocols=protocols):
        pass

    assert refused.value.response.status_code == status
    assert refused.value.response.headers["x-velox-reason"] == code
    assert sum("realtime" in request.path for request in echo.requests) == n_before


def test_browsers_own_key_passes_where_the_gateway_has_none(echo: WebSocketUpstream) -> None:
    """Without keys of the gateway's and of the upstream's here, the client's is for the upstream."""
    with (
        VeloxProcess(echo.env()) as velox,
        connect(velox, authorization=None, subprotocols=browser("sk-of-the-page"), origin="http://localhost:3000"),
    ):
        pass

    assert "openai-insecure-api-key.sk-of-the-page" in echo.wait_session().request.headers["Sec-WebSocket-Protocol"]


@pytest.mark.parametrize(
    "origin", ["https://elsewhere.example", "null", "http://127.0.0.1.elsewhere.example", "http://["]
)
def test_page_from_elsewhere_needs_a_key(echo: WebSocketUpstream, origin: str) -> None:
    """RFC 6455 §10.2: any page can open a WebSocket to this machine; it must not use the gateway's key."""
    with VeloxProcess({**echo.env(), "OPENAI_API_KEY": OURS}) as velox:
        with pytest.raises(InvalidStatus) as refused, connect(velox, authorization=None, origin=origin):
            pass
        assert refused.value.response.status_code == 403
        assert refused.value.response.headers["x-velox-reason"] == "forbidden"

        with connect(velox, authorization=None, origin="http://localhost:3000") as ws:
            ws.send("hi")
            assert ws.recv() == "hi"
    echo.wait_session()


# -- what the upstream says ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (SWITCHED.replace(WS_ACCEPT.encode(), b"AAAAAAAAAAAAAAAAAAAAAAAAAAA=") + b"\r\n", 502, "upstream_protocol"),
        (SWITCHED.replace(b"upgrade: websocket", b"upgrade: h2c") + b"\r\n", 502, "upstream_protocol"),
        (SWITCHED.replace(b"connection: Upgrade\r\n", b"") + b"\r\n", 502, "upstream_protocol"),
        (SWITCHED + b"sec-websocket-protocol: other\r\n\r\n", 502, "upstream_protocol"),
        (SWITCHED + b"sec-websocket-extensions: x-other\r\n\r\n", 502, "upstream_protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 502, "upstream_protocol"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 502, "upstream_protocol"),
        (b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", 502, "upstream_redirect"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 502, "upstream_protocol"),
        (b"", 502, "upstream_reset"),
        (b"HTTP/1.1 101 Swi", 502, "upstream_reset"),
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno", 401, ""),
        (b"HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n", 404, ""),
        (b"HTTP/1.1 403 Forbidden\r\n\r\nno", 403, ""),
    ],
)  # fmt: skip
def test_answer_that_opens_no_websocket(answer: bytes, status: int, code: str) -> None:
    """A refusal passes as any reply does; what is neither that nor a good 101 is the upstream's fault."""

    def script(sock: socket.socket, head: bytes) -> None:
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_RDWR)

    env = {"VELOX_RETRIES": "0", "OPENAI_API_KEY": OURS}
    with RawUpstream(script) as upstream, VeloxProcess({**upstream.env(), **env}) as velox, nothing_left(velox):
        with velox.connect() as sock:
            # Bytes ahead of the answer are nobody's when there is no tunnel.
            sock.sendall(raw_handshake() + b"GET /v1/smuggled HTTP/1.1\r\nhost: a\r\n\r\n")
            reply = read_reply(sock)
            assert is_closed(sock)

        assert (reply.status, reason(reply)) == (status, code)
        assert code or reply.body == b"no"
        line = velox.wait_access(lambda line: line["endpoint"] == "realtime")
        assert (line["status"], line["reason"]) == (status, code or "upstream_status")
        assert len(upstream.heads) == 1


def test_error_that_shows_our_key_is_replaced() -> None:
    """F-26: as for any reply."""
    body = json.dumps({"error": {"message": f"wrong key {OURS}"}}).encode()

    def script(sock: socket.socket, head: bytes) -> None:
        sock.sendall(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    with (
        RawUpstream(script) as upstream,
        VeloxProcess({**upstream.env(), "OPENAI_API_KEY": OURS}) as velox,
        velox.connect() as sock,
    ):
        sock.sendall(raw_handshake())
        reply = read_reply(sock)
    assert reply.status == 401 and OURS.encode() not in reply.body


def test_upstream_that_is_not_there_is_passed_over(echo: WebSocketUpstream) -> None:
    """A connection that can't be made costs nothing: the next upstream is tried."""
    origins = f"http://127.0.0.1:{free_port()},{echo.url}"
    with VeloxProcess({**echo.env(), "VELOX_UPSTREAM_ORIGIN": origins}) as velox:
        with connect(velox) as ws:
            ws.send("hi")
            assert ws.recv() == "hi"
        echo.wait_session()
        line = velox.wait_access(lambda line: line["endpoint"] == "realtime")
        assert (line["status"], line["reason"]) == (101, "ok")


def test_no_upstream_at_all_is_told() -> None:
    """502 with the reason of the step that failed; an SDK may try again."""
    with (
        VeloxProcess({"VELOX_UPSTREAM_ORIGIN": f"http://127.0.0.1:{free_port()}", "VELOX_WORKERS": "1"}) as velox,
        pytest.raises(InvalidStatus) as refused,
        connect(velox),
    ):
        pass
    response = refused.value.response
    assert (response.status_code, response.headers["x-velox-reason"]) == (502, "upstream_connect")
    assert response.headers["x-should-retry"] == "true"


def test_upstream_that_does_not_answer_runs_out_of_time() -> None:
    """The handshake has the time that a reply's first byte has."""

    def script(sock: socket.socket, head: bytes) -> None:
        sock.recv(1)

    env = {"VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT": "300ms"}
    with (
        RawUpstream(script) as upstream,
        VeloxProcess({**upstream.env(), **env}) as velox,
        nothing_left(velox),
        pytest.raises(InvalidStatus) as refused,
        connect(velox),
    ):
        pass
    response = refused.value.response
    assert (response.status_code, response.headers["x-velox-reason"]) == (504, "upstream_ttfb_timeout")


# -- the gate -----------------------------------------------------------------------------------------------


def test_websocket_takes_one_token(echo: WebSocketUpstream) -> None:
    """One from the bucket for the connection, none for its messages."""
    env = {"VELOX_RATE_LIMIT_RPM": "1", "VELOX_RATE_LIMIT_BURST": "1", "VELOX_RATE_LIMIT_MAX_WAIT": "0s"}
    with VeloxProcess({**echo.env(), **env}) as velox:
        with connect(velox) as ws:
            for _ in range(10):
                ws.send("hi")
                assert ws.recv() == "hi"
            with pytest.raises(InvalidStatus) as refused, connect(velox):
                pass
        echo.wait_session()
    response = refused.value.response
    assert (response.status_code, response.headers["x-velox-reason"]) == (429, "rate_limited")


@covers("VELOX_MAX_TUNNELS")
def test_more_websockets_than_allowed_are_refused(echo: WebSocketUpstream) -> None:
    """They never take all places: other requests pass meanwhile, and one that ends makes room for another."""
    env = {"VELOX_MAX_TUNNELS": "2", "VELOX_MAX_INFLIGHT": "3"}
    with VeloxProcess({**echo.env(), **env}) as velox:
        with connect(velox) as first, connect(velox) as second:
            assert velox.wait_metric("velox_tunnels", lambda n: n == 2) == 2
            with pytest.raises(InvalidStatus) as refused, connect(velox):
                pass
            assert velox.request("GET", "/v1/models").header("x-velox-reason") is None
            second.close()
            velox.wait_metric("velox_tunnels", lambda n: n == 1)
            with connect(velox) as third:
                third.send("hi")
                assert third.recv() == "hi"
            first.send("still here")
            assert first.recv() == "still here"
        velox.wait_metric("velox_tunnels", lambda n: n == 0)
    response = refused.value.response
    assert (response.status_code, response.headers["x-velox-reason"]) == (503, "conn_limit")


def test_limited_key_opens_its_models_only(echo: WebSocketUpstream, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The model is read from the query; one that names none is refused, for it could be any.

    So is a WebSocket that is not known to say where; at /responses each message must name it, whatever the query says.
    """
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"- name: alice\n  key: {ALICE}\n  models: [gpt-realtime*]\n")
    keys.chmod(0o600)
    with VeloxProcess({**echo.env(), "VELOX_API_KEYS_FILE": str(keys)}) as velox:
        bearer = f"Bearer {ALICE}"
        with connect(velox, "/v1/realtime?model=gpt-realtime-mini", authorization=bearer) as ws:
            ws.send("{}")  # each message of such a key is read: it is a JSON object
            assert ws.recv() == "{}"
        with connect(velox, "/v1/responses?model=gpt-realtime", authorization=bearer) as ws:
            ws.send('{"type":"response.create","model":"gpt-realtime"}')
            ws.recv()
            ws.send('{"type":"response.create"}')
            with pytest.raises(ConnectionClosed):
                ws.recv()
        other = ("/v1/responses?model=other", "/v1/live/sessions?model=gpt-realtime")
        for target in ("/v1/realtime?model=other", "/v1/realtime", "/v1/realtime?intent=transcription", *other):
            with pytest.raises(InvalidStatus) as refused, connect(velox, target, authorization=bearer):
                pass
            response = refused.value.response
            assert (response.status_code, response.headers["x-velox-reason"]) == (403, "forbidden")


def test_key_of_the_specification_is_what_it_says() -> None:
    """The fixed key of these tests: 16 bytes."""
    assert base64.b64decode("dGhlIHNhbXBsZSBub25jZQ==") == b"the sample nonce"
    assert KEY != OURS
