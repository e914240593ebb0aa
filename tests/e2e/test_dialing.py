"""Connections that can't be made: the answer names the step that failed, and says that a retry is free."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess

pytestmark = pytest.mark.more

CHAT = b'{"model":"m","messages":[]}'


@contextmanager
def silent_listener() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield listener.getsockname()[1]


@contextmanager
def full_listener() -> Iterator[int]:
    """A black hole: the queue is full, and the kernel answers no SYN."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections: bound, and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.fault("F-1", "F-2", "F-7")
@pytest.mark.parametrize(
    ("scheme", "place", "reason"),
    [
        ("https", silent_listener, "upstream_tls"),
        ("https", closed_port, "upstream_connect"),
        ("http", closed_port, "upstream_connect"),
        ("http", full_listener, "upstream_connect"),
        ("https", full_listener, "upstream_connect"),
    ],
)
def test_failed_dial_is_answered_with_its_step(scheme: str, place: object, reason: str) -> None:
    """F-1, F-2, F-7: 502 with the reason of the step, also where the queue's time-out is shorter than the dial's."""
    assert callable(place)
    with place() as port:
        env = {
            "VELOX_WORKERS": "1",
            "VELOX_UPSTREAM_ORIGIN": f"{scheme}://127.0.0.1:{port}",
            "VELOX_UPSTREAM_CONNECT_TIMEOUT": "700ms",
            "VELOX_UPSTREAM_TLS_TIMEOUT": "700ms",
            "VELOX_QUEUE_TIMEOUT": "100ms",
        }
        with VeloxProcess(env) as velox:
            reply = velox.request("POST", "/v1/chat/completions", CHAT)

    assert reply.status == 502
    assert reply.header("x-velox-reason") == reason
    assert reply.header("x-should-retry") == "true"


def test_name_that_does_not_resolve_is_answered_as_such() -> None:
    """F-3: 502 upstream_dns."""
    env = {"VELOX_WORKERS": "1", "VELOX_UPSTREAM_ORIGIN": "http://no-such-host.invalid"}
    with VeloxProcess(env) as velox:
        reply = velox.request("POST", "/v1/chat/completions", CHAT)

    assert (reply.status, reply.header("x-velox-reason")) == (502, "upstream_dns")


def test_unix_socket_is_an_upstream(tmp_path: Path) -> None:
    """`unix:PATH`: another Velox listens there; replies come whole, and nothing was looked up."""
    path = tmp_path / "upstream.sock"
    with (
        VeloxProcess({"VELOX_LISTEN": f"unix:{path}", "VELOX_WORKERS": "1"}, ("serve", "--sim")) as upstream,
        VeloxProcess({"VELOX_UPSTREAM_ORIGIN": f"unix:{path}", "VELOX_WORKERS": "1"}) as velox,
    ):
        assert {velox.request("POST", "/v1/chat/completions", CHAT).status for _ in range(10)} == {200}
        assert velox.admin("/readyz").status == 200
        upstream.stop()
        refused = velox.request("POST", "/v1/chat/completions", CHAT)
        assert (refused.status, refused.header("x-velox-reason")) == (502, "upstream_connect")
        assert str(path) not in refused.body.decode()
        assert not [sample for sample, value in velox.metrics().items() if "dns_refresh" in sample and value]


def test_unix_socket_is_called_localhost(tmp_path: Path) -> None:
    """The Host header can't be a path (RFC 9110 §7.2)."""
    path = str(tmp_path / "upstream.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(10)
        with VeloxProcess({"VELOX_UPSTREAM_ORIGIN": f"unix:{path}", "VELOX_WORKERS": "1"}):
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(10)
                assert b"\r\nhost: localhost\r\n" in accepted.recv(65536).lower()
