"""Connections that can't be made: the answer names the step that failed, and says that a retry is free."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.harness import VeloxProcess

CHAT = b'{"model":"m","messages":[]}'


@contextmanager
def silent_listener() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield listener.getsockname()[1]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections: bound, and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize(
    ("scheme", "place", "reason"),
    [
        ("https", silent_listener, "upstream_tls"),
        ("https", closed_port, "upstream_connect"),
        ("http", closed_port, "upstream_connect"),
    ],
)
def test_failed_dial_is_answered_with_its_step(scheme: str, place: object, reason: str) -> None:
    """F-1, F-7: 502 with the reason of the step, also where the queue's time-out is shorter than the dial's."""
    assert callable(place)
    with place() as port:
        env = {
            "VELOX_WORKERS": "1",
            "VELOX_UPSTREAM_ORIGIN": f"{scheme}://127.0.0.1:{port}",
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
