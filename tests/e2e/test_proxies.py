"""Upstreams behind an outgoing proxy: tunnels, absolute targets, credentials, and what a proxy that fails does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.raw_http import RawReply
from tests.e2e.recording import RecordingUpstream
from tests.e2e.tools import free_port
from tests.e2e.upstreams import Certificates
from tests.e2e.websocket_upstreams import WebSocketUpstream, connect
from tests.fake_proxy import FakeProxy, Fault

LOGIN = "velox:p@ss word"
LOGIN_IN_URL = "velox:p%40ss%20word"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()


def _config(tmp_path: Path, proxy: str, **fields: object) -> dict[str, str]:
    """Return the settings of one upstream with a proxy of its own."""
    file = tmp_path / "velox.yaml"
    file.write_text(json.dumps({"upstreams": [{"name": "u", "connections": 1, "proxy": proxy, **fields}]}))
    return {"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1"}


def _ask(velox: VeloxProcess) -> RawReply:
    return velox.request("POST", "/v1/chat/completions", CHAT)


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain proxy", "TLS proxy"])
def test_https_upstream_is_asked_through_a_tunnel(
    http2: bool, is_tls: bool, certificates: Certificates, tmp_path: Path
) -> None:
    """Over HTTP/1.1 and HTTP/2, with credentials, which nobody but the proxy gets; TLS is with the upstream."""
    context = certificates.server_context() if is_tls else None
    with RecordingUpstream(http2=http2, certificates=certificates) as upstream:
        name = f"localhost:{upstream.port}"
        with FakeProxy({name: ("127.0.0.1", upstream.port)}, login=LOGIN, context=context) as proxy:
            env = _config(tmp_path, "env:EGRESS", origin=f"https://{name}", ca_file=certificates.ca_file)
            env["EGRESS"] = proxy.url.replace("://", f"://{LOGIN_IN_URL}@")
            with VeloxProcess(env) as velox:
                velox.wait_warm()
                replies = [_ask(velox) for _ in range(3)]
            assert [reply.status for reply in replies] == [200] * 3
            assert {(each.method, each.target) for each in proxy.asked} == {("CONNECT", name)}
            assert all("proxy-authorization" not in dict(call.headers) for call in upstream.calls)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain proxy", "TLS proxy"])
def test_http_upstream_is_asked_with_an_absolute_target(is_tls: bool, certificates: Certificates) -> None:
    """By HTTP_PROXY; connections are kept, and the server gets nothing of the proxy's."""
    context = certificates.server_context() if is_tls else None
    with (
        RecordingUpstream() as upstream,
        FakeProxy({"models.example:80": ("127.0.0.1", upstream.port)}, login=LOGIN, context=context) as proxy,
    ):
        env = {
            "VELOX_UPSTREAM_ORIGIN": "http://models.example/base",
            "HTTP_PROXY": proxy.url.replace("://", f"://{LOGIN_IN_URL}@"),
            "VELOX_UPSTREAM_CA_FILE": certificates.ca_file,
            "VELOX_WORKERS": "1",
            "VELOX_EGRESS_POOL_CONNECTIONS": "1",
        }
        with VeloxProcess(env) as velox:
            velox.wait_warm()
            assert [_ask(velox).status for _ in range(3)] == [200] * 3
        targets = [each.target for each in proxy.asked]
        assert targets[-1] == "http://models.example/base/v1/chat/completions"
        assert [call.target for call in upstream.calls][-1] == "/base/v1/chat/completions"
        assert all("proxy-authorization" not in dict(call.headers) for call in upstream.calls)
        assert upstream.n_connections < len(proxy.asked)


def test_no_proxy_and_off_go_past_it(tmp_path: Path) -> None:
    """By the environment's own word, or the upstream's."""
    with RecordingUpstream() as upstream, FakeProxy({}) as proxy:
        origin = f"http://127.0.0.2:{free_port()}"
        usual = {"HTTP_PROXY": proxy.url, "VELOX_WORKERS": "1"}
        with VeloxProcess({**upstream.env(), **usual}) as velox:  # this machine has none
            velox.wait_warm()
            assert _ask(velox).status == 200
        with VeloxProcess({**_config(tmp_path, "off", origin="http://192.0.2.1:9"), **usual}):
            pass
        with VeloxProcess({"VELOX_UPSTREAM_ORIGIN": origin, "NO_PROXY": "127.0.0.0/8", **usual}):
            pass
        assert proxy.asked == []


@pytest.mark.parametrize("is_tls", [False, True], ids=["ws", "wss"])
def test_websocket_goes_through_a_tunnel(is_tls: bool, certificates: Certificates, tmp_path: Path) -> None:
    """To a server of plain HTTP, too (RFC 6455 §4.1): a proxy that sends requests on knows no 101."""
    with WebSocketUpstream(certificates=certificates if is_tls else None) as upstream:
        port = int(upstream.url.rpartition(":")[2])
        name = f"localhost:{port}"
        with FakeProxy({name: ("127.0.0.1", port)}) as proxy:
            scheme = "https" if is_tls else "http"
            more = {"ca_file": certificates.ca_file} if is_tls else {}
            env = _config(tmp_path, proxy.url, origin=f"{scheme}://{name}", **more)
            with VeloxProcess(env) as velox, connect(velox) as ws:
                ws.send("hello")
                assert ws.recv() == "hello"
            assert ("CONNECT", name) in {(each.method, each.target) for each in proxy.asked}


_FAULTS: dict[str, tuple[Fault, str]] = {
    "407": (b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n", "asks for a user and a password (407 Proxy Auth"),
    "403": (b"HTTP/1.1 403 Secret\r\ncontent-length: 0\r\n\r\n", "does not connect to localhost:443 (403 Forbidden)"),
    "502": (b"HTTP/1.0 502 Bad\r\n\r\n", "can't reach localhost:443 (502 Bad Gateway)"),
    "garbage": (b"\x00\x01\x02 p4ssw0rd", "answers with what is no HTTP/1"),
    "closes": ("closes", "closed the connection before it had answered"),
    "silent": ("silent", "has not opened a tunnel to localhost:443: time-out"),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_proxy_that_fails_is_named_and_the_upstream_counts_as_failing(fault: str, tmp_path: Path) -> None:
    """Another upstream answers then, and a request for this one alone gets a clear error without the password."""
    answer, words = _FAULTS[fault]
    with RecordingUpstream() as healthy, FakeProxy({}) as proxy:
        proxy.fault = answer
        file = tmp_path / "velox.yaml"
        behind = {
            "name": "behind",
            "origin": "https://localhost",
            "proxy": "env:EGRESS",
            "timeouts": {"connect": "200ms"},
        }
        other = {"name": "other", "origin": healthy.upstream.url}
        routes = [
            {"name": "alone", "match": {"models": ["alone"]}, "to": ["behind"]},
            {"name": "rest", "to": ["behind"], "fallback": ["other"]},
        ]
        file.write_text(json.dumps({"upstreams": [behind, other], "routes": routes}))
        url = proxy.url if fault == "407" else proxy.url.replace("://", "://velox:p4ssw0rd@")
        with VeloxProcess({"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1", "EGRESS": url}) as velox:
            reply = velox.request("POST", "/v1/chat/completions", CHAT.replace(b'"m"', b'"alone"'))
            assert _ask(velox).status == 200
            until(lambda: any("is ejected" in line for line in velox.stderr.lines), "the upstream is ejected")
            log = "\n".join(velox.stderr.lines)
        assert (reply.status, reply.error()["code"]) == (502, "upstream_connect")
        assert f"the proxy {proxy.url} {words}" in reply.error()["message"]
        assert f"the proxy {proxy.url} {words}" in log
        assert "p4ssw0rd" not in log + reply.body.decode()


def test_proxy_that_sends_requests_on_and_wants_credentials_is_told_of() -> None:
    """A 407 is the proxy's own word: no client gets it for the server's."""
    with (
        RecordingUpstream() as upstream,
        FakeProxy({"m.example:80": ("127.0.0.1", upstream.port)}, login=LOGIN) as proxy,
    ):
        env = {"VELOX_UPSTREAM_ORIGIN": "http://m.example", "HTTP_PROXY": proxy.url, "VELOX_WORKERS": "1"}
        with VeloxProcess(env) as velox:
            reply = _ask(velox)
        assert (reply.status, reply.error()["code"]) == (502, "upstream_connect")
        assert f"the proxy {proxy.url} asks for a user and a password (407" in reply.error()["message"]
        assert not upstream.calls


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_proxy_that_is_down_is_told_of(dead_port: int) -> None:
    """And not the upstream, which nobody has asked."""
    env = {"VELOX_UPSTREAM_ORIGIN": "https://m.example", "HTTPS_PROXY": f"127.0.0.1:{dead_port}", "VELOX_WORKERS": "1"}
    with VeloxProcess(env) as velox:
        reply = _ask(velox)
    message = f"the proxy http://127.0.0.1:{dead_port} could not be reached: Connection refused"
    assert (reply.status, reply.error()["message"]) == (502, message)
