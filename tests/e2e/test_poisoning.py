"""What clients and upstreams put into names, headers and bodies gets into no log and no metric, or as mere text.

That no key, header or body is in anything that a gateway wrote during the whole suite
is searched for at its end (tests/secret_watch.py); here are the requests that would bring most into it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hpack import Encoder
from hyperframe.frame import HeadersFrame, PingFrame, SettingsFrame

from tests.e2e.harness import KEY, RawReply, VeloxProcess, is_closed
from tests.e2e.raw_http import read_reply
from tests.e2e.recording import JSON, SSE, Call, RecordingUpstream
from tests.e2e.tools import CHAT, CHAT_STREAM, Client, request_bytes
from tests.e2e.upstreams import Certificates
from tests.secret_watch import WATCH
from velox.observe.access_log import AccessRecord
from velox.protocol.http2.engine import PREFACE

MARKERS = {
    "body": "marker-of-a-body-5b1d",
    "header": "marker-of-a-header-77aa",
    "query": "marker-of-a-query-c09e",
    "cookie": "marker-of-a-cookie-41ff",
    "protocol": "marker-of-a-protocol-93ac",
    "upstream": "marker-of-an-upstream-0d2e",
    "name": "marker-of-a-server-name-18c3",
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@pytest.fixture(scope="module")
def upstream() -> Iterator[RecordingUpstream]:
    """A scripted upstream."""
    for kind, marker in MARKERS.items():
        WATCH.secret(marker, f"what was in a {kind}")
    with RecordingUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def velox(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway that logs every request."""
    env = {**upstream.env(), "VELOX_WORKERS": "2", "VELOX_ACCESS_LOG": "all", "VELOX_RATE_LIMIT_RPM": "0"}
    with VeloxProcess({**env, "OPENAI_API_KEY": "sk-ours-9f8e7d6c5b4a", "VELOX_RETRIES": "0"}) as running:
        running.wait_warm()
        yield running


def written(velox: VeloxProcess) -> str:
    """Return all that a gateway has written so far, with a metrics page of now; each line of it must be printable."""
    lines = [*velox.stdout.lines, *velox.stderr.lines, *velox.admin("/metrics").body.decode().splitlines()]
    assert all(line.isascii() and line.isprintable() for line in lines), [x for x in lines if not x.isprintable()]
    return "\n".join(lines)


def logged(velox: VeloxProcess, reply: RawReply) -> dict[str, object]:
    """Return the access log's line of a request."""
    return velox.wait_access(lambda line: line["id"] == reply.header("x-velox-request-id"))


# -- metrics ------------------------------------------------------------------------------------------------------


def unlike_others(velox: VeloxProcess, numbers: range) -> None:
    """Send a request for each number: an unknown model, an unknown path, a known or an unknown method."""
    body = '{"model":"no-such-model-%d","messages":[]}'
    with contextlib.ExitStack() as open_clients:
        client = open_clients.enter_context(Client(velox))
        for number in numbers:
            match number % 5:
                case 0 | 1:
                    client.send("POST", "/v1/chat/completions", (body % number).encode())
                    assert client.read().status in (200, 404)
                case 2 | 3:
                    assert client.ask("GET", f"/v1/no-such-path-{number}/{number}").status in (200, 404)
                case _:  # such a method ends the connection
                    client.send(f"NOSUCH{number}" if number % 2 else "TRACE", "/v1/models")
                    assert client.read().status in (400, 405)
                    client = open_clients.enter_context(Client(velox))


@pytest.mark.more
def test_ten_thousand_unknown_models_paths_and_methods_add_no_series(velox: VeloxProcess) -> None:
    """B-37: the series are those that a few such requests bring; their number is the constant of the docs."""
    unlike_others(velox, range(20))
    before = set(velox.metrics())

    unlike_others(velox, range(20, 10_020))

    after = velox.metrics()
    assert set(after) == before
    assert not [name for name in after if "no-such" in name or "NOSUCH" in name]
    counted = sum(n for name, n in after.items() if name.startswith("velox_requests_total"))
    assert counted >= 10_020, "they were counted, each of them"
    page = Path(__file__).parents[2].joinpath("docs/metrics.md").read_text()
    (most,) = [line for line in page.splitlines() if "series at most" in line]
    fixed, per_worker, per_process = (int(word.replace(",", "")) for word in most.split() if word[0].isdigit())
    assert len(after) <= fixed + 2 * per_worker + 4 * per_process


# -- log injection ------------------------------------------------------------------------------------------------


EVIL = (
    'x"\n{"level":"info","status":200}\r\n', "\x1b[2K\x1b[1A", "\x00\x07\x7f", "\u2028\u2029\x85", "\u202etxt.exe",
    "' -- \\", "\U0001f30d" * 128, '"}\nvelox_requests_total{route="x"} 1\n',
)  # fmt: skip


@pytest.mark.parametrize("text", EVIL, ids=lambda text: ascii(text)[:20])
def test_model_and_user_are_text_in_the_log(velox: VeloxProcess, text: str) -> None:
    """B-36: a model's name is refused or escaped; whatever it is, there is one line, with the fields that all have."""
    body = json.dumps({"model": text, "user": text, "messages": [{"role": text, "content": text}]}).encode()
    reply = velox.request("POST", "/v1/chat/completions", body)

    line = logged(velox, reply)
    assert set(line) == set(AccessRecord.__slots__)
    assert line["model"] in (None, text[:256]), "a refused one is not logged"
    assert (reply.status == 200) == (line["model"] is not None)
    assert [found for found in velox.access_log() if found["id"] == line["id"]] == [line]
    written(velox)


RAW = {
    "path": b"GET /v1/models/%1b%5b31m\x1b[31m HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded path": b"GET /v1/models/%7f%e2%80%a8%c2%85x HTTP/1.1\r\nHost: a\r\n\r\n",
    "method": b"GE\x1bT / HTTP/1.1\r\nHost: a\r\n\r\n",
    "unknown method": b'G"E\\T / HTTP/1.1\r\nHost: a\r\n\r\n',
    "version": b"GET / HTTP/1.1\x1b\r\nHost: a\r\n\r\n",
    "host": b'GET / HTTP/1.1\r\nHost: a"\x1b[31m\r\n\r\n',
    "request id": b'GET /v1/models HTTP/1.1\r\nHost: a\r\nx-request-id: "}\t{"level":"x"\r\n\r\n',
    "request id over two lines": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nx-request-id: a\r\n {}\r\n\r\n",
    "velox id": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nx-velox-request-id: mine\r\nx-velox-reason: ok\r\n\r\n",
    "deadline": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nx-request-timeout-ms: marker-of-a-header-77aa\r\n\r\n",
    "connection": b'GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: "\x1b\r\n\r\n',
    "beyond ASCII": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX-A: \xff\xfe\x85\r\n\r\n",
    "binary": bytes(range(256)) + b"\r\n\r\n",
    "TLS": bytes.fromhex("1603010005010000010303") + b"marker-of-a-header-77aa\r\n\r\n",
    "preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "protocol": b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.marker-of-a-protocol-93ac\r\n\r\n",
}


@pytest.mark.parametrize("wire", RAW.values(), ids=RAW)
def test_bytes_of_a_head_are_text_in_the_log(velox: VeloxProcess, wire: bytes) -> None:
    """Whatever a head holds, what is logged of it is one printable line; the ids are Velox's own."""
    with velox.connect() as sock:
        sock.sendall(wire)
        with contextlib.suppress(ConnectionError):
            reply = read_reply(sock)
            line = logged(velox, reply)
            assert set(line) == set(AccessRecord.__slots__) and str(line["id"]).startswith("vx-")
            assert line["method"] in ("", *METHODS)
            assert reply.header("x-velox-request-id") != "mine"

    with velox.still_healthy():
        pass
    text = written(velox)
    assert not [marker for marker in MARKERS.values() if marker in text]


USUAL = {":method": "GET", ":scheme": "http", ":authority": "a.test", ":path": "/v1/models"}
FIELDS = {
    "usual": {":path": "/v1/models/by-http2"},
    "path": {":path": "/v1/models/\x1b[31m"},
    "encoded path": {":path": "/v1/models/%0a%7b%7d"},
    "query": {":path": f"/v1/models?{MARKERS['query']}"},
    "method": {":method": 'GE"T'},
    "unknown method": {":method": "NOSUCH"},
    "authority": {":authority": 'a"\n{}'},
    "value": {"x-note": "a\r\nb: c"},
    "header": {"x-note": MARKERS["header"], "authorization": f"Bearer {MARKERS['header']}"},
    "request id": {"x-request-id": '"}\t{"level":"x"'},
    "name": {"marker-of-a-header-77aa": "y"},
    "upper case": {"Marker-Of-A-Header": "y"},
    "length": {"content-length": MARKERS["header"]},
}


@pytest.fixture(scope="module")
def velox_http2(upstream: RecordingUpstream) -> Iterator[VeloxProcess]:
    """A gateway that clients may speak HTTP/2 with."""
    env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all", "VELOX_LISTEN_HTTP2": "on"}
    with VeloxProcess(env) as running:
        running.wait_warm()
        yield running


@pytest.mark.parametrize("changed", FIELDS.values(), ids=FIELDS)
def test_fields_of_http2_are_text_in_the_log(velox_http2: VeloxProcess, changed: dict[str, str]) -> None:
    """The same over HTTP/2, where any byte can stand in a field."""
    fields = {**USUAL, **changed}
    ordered = sorted(fields.items(), key=lambda field: not field[0].startswith(":"))
    block = Encoder().encode([(name.encode(), value.encode()) for name, value in ordered], huffman=False)

    with velox_http2.connect() as sock:
        sock.sendall(PREFACE + SettingsFrame(0).serialize())
        sock.sendall(HeadersFrame(1, block, flags=["END_HEADERS", "END_STREAM"]).serialize())
        sock.sendall(PingFrame(0, b"the end!").serialize())
        found = b""
        with contextlib.suppress(ConnectionError):
            while b"the end!" not in found and (piece := sock.recv(65536)):
                found += piece

    with velox_http2.still_healthy():
        pass
    if changed is FIELDS["usual"]:
        # 499: it may be under way when the connection is closed.
        assert velox_http2.wait_access(lambda line: line["path"] == changed[":path"])["status"] in (200, 499)
    for line in velox_http2.access_log():
        assert set(line) == set(AccessRecord.__slots__) and line["method"] in ("", *METHODS)
    text = written(velox_http2)
    assert not [marker for marker in MARKERS.values() if marker in text]


# -- what nobody may read there -----------------------------------------------------------------------------------


async def broken_head(call: Call) -> None:
    """Break HTTP with words that would be quoted by a careless reader."""
    call.link.transport.write(b"HTTP/1.1 200 OK\r\nmarker-of-an-upstream-0d2e\x1b[31m: \x00\r\n\r\n")


async def cut(call: Call) -> None:
    """Begin a stream, and end it."""
    await call.head(200, SSE)
    await call.data(b'data: {"choices":[{"delta":{"content":"marker-of-an-upstream-0d2e"}}]}\n\n')
    call.cut()


async def redirect(call: Call) -> None:
    """Send the client elsewhere."""
    await call.reply(302, [("location", "http://elsewhere.test/?marker-of-an-upstream-0d2e")], b"")


async def refuse(call: Call) -> None:
    """Refuse, with an error that repeats our key and words of its own."""
    text = {"error": {"message": f"{call.header('authorization')} marker-of-an-upstream-0d2e\n"}}
    fields = [*JSON, ("x-note", "marker-of-an-upstream-0d2e"), ("x-request-id", "marker-of-an-upstream-0d2e")]
    await call.reply(401, fields, json.dumps(text).encode())


async def reset(call: Call) -> None:
    """Leave without an answer."""
    call.lose()


def marked(body: bytes) -> tuple[str, str, bytes, dict[str, str]]:
    """Return a request with a marker wherever a client can put one."""
    fields = {
        "authorization": f"Bearer {KEY}-{MARKERS['header']}",
        "cookie": MARKERS["cookie"],
        "x-note": MARKERS["header"],
        "openai-organization": MARKERS["header"],
        "traceparent": f"00-{MARKERS['header']}",
        "user-agent": MARKERS["header"],
        "referer": f"http://a.test/{MARKERS['header']}",
        "x-forwarded-for": MARKERS["header"],
    }
    document = {**json.loads(body), "user": MARKERS["body"], "metadata": {MARKERS["body"]: MARKERS["body"]}}
    return "POST", f"/v1/chat/completions?{MARKERS['query']}=1", json.dumps(document).encode(), fields


@pytest.mark.parametrize("script", [broken_head, cut, redirect, refuse, reset], ids=lambda script: script.__name__)
@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["plain", "stream"])
def test_upstream_that_fails_brings_nothing_into_the_log(
    velox: VeloxProcess, upstream: RecordingUpstream, script: Callable[..., object], body: bytes
) -> None:
    """Neither what the client sent nor what the upstream said, however the exchange ends."""
    method, target, marked_body, fields = marked(body)

    with upstream.playing(script), velox.connect() as sock:  # type: ignore[arg-type]  # a script is one
        sock.sendall(request_bytes(method, target, marked_body, fields))
        with contextlib.suppress(ConnectionError):
            reply = read_reply(sock)
            logged(velox, reply)
            if reply.header("x-velox-reason"):
                assert not [marker for marker in MARKERS.values() if marker.encode() in reply.body]

    text = written(velox)
    assert not [marker for marker in MARKERS.values() if marker in text]
    assert "sk-" not in text, "neither the client's key nor ours"


REFUSED = {
    "JSON": b'{"model":"m","a":"marker-of-a-body-5b1d',
    "twice": b'{"model":"m","model":"marker-of-a-body-5b1d"}',
    "stream": b'{"model":"m","stream":"marker-of-a-body-5b1d"}',
    "tokens": b'{"model":"m","max_tokens":"marker-of-a-body-5b1d"}',
    "model": b'{"model":["marker-of-a-body-5b1d"]}',
    "UTF-8": b'{"model":"m","a":"marker-of-a-body-5b1d\xff"}',
    "no object": b'["marker-of-a-body-5b1d"]',
    "constant": b'{"model":"m","marker-of-a-body-5b1d":NaN}',
    "escape": b'{"model":"m","a":"\\marker-of-a-body-5b1d"}',
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_refusal_repeats_nothing_of_a_body(velox: VeloxProcess, body: bytes) -> None:
    """An error says where and what, not with which words."""
    reply = velox.request("POST", "/v1/chat/completions", body)

    assert reply.status == 400
    assert MARKERS["body"].encode() not in reply.head + reply.body
    assert logged(velox, reply)["model"] in (None, "m")
    assert MARKERS["body"] not in written(velox)


def test_server_name_of_a_tls_client_is_not_logged(
    upstream: RecordingUpstream, certificates: Certificates, tmp_path: Path
) -> None:
    """A handshake that fails, or asks for a name that nobody has, is counted; what the client said is not repeated."""
    cert = tmp_path / "cert.pem"
    cert.write_bytes(Path(certificates.cert_file).read_bytes())
    env = {**upstream.env(), "VELOX_WORKERS": "1", "VELOX_ACCESS_LOG": "all"}
    env |= {"VELOX_TLS_CERT": str(cert), "VELOX_TLS_KEY": certificates.key_file}
    with VeloxProcess(env) as velox:
        context = ssl.create_default_context(cafile=certificates.ca_file)
        for name, protocols in (("127.0.0.1", ["x-marker"]), (MARKERS["name"], ["http/1.1"])):
            context.set_alpn_protocols(protocols)
            with socket.create_connection(("127.0.0.1", velox.port), 10) as sock, contextlib.suppress(OSError):
                context.wrap_socket(sock, server_hostname=name).close()
        with velox.connect() as sock:
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: marker-of-a-server-name-18c3\r\n\r\n")
            assert is_closed(sock)

        text = written(velox)

    assert not [marker for marker in ("x-marker", *MARKERS.values()) if marker in text]


def test_every_line_of_the_logs_is_an_object_of_json(velox: VeloxProcess) -> None:
    """Both logs, all of them, after everything above and requests of every kind."""
    unlike_others(velox, range(200))
    logged(velox, velox.request("GET", "/v1/models"))

    lines = list(itertools.chain(velox.stdout.lines, velox.stderr.lines))

    for line in lines:
        fields = json.loads(line)
        assert isinstance(fields, dict)
        assert all(len(value) <= 256 for value in fields.values() if isinstance(value, str)), line
    assert len(lines) > 50
