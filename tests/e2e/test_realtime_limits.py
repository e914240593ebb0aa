"""The limits of requests and of requests at a time count a WebSocket, too: from its handshake to its close."""

from __future__ import annotations

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.routed import named
from tests.e2e.websocket_upstreams import WebSocketUpstream, raw_handshake, read_head


def shake_hands(velox: VeloxProcess, stack: contextlib.ExitStack) -> tuple[bytes, socket.socket]:
    """Ask for a WebSocket; return the head of the answer, and its connection, which stays open."""
    sock = stack.enter_context(contextlib.closing(velox.connect()))
    sock.sendall(raw_handshake())
    return read_head(sock), sock


def test_tunnel_holds_its_slot_until_it_is_closed() -> None:
    """One at a time: the second gets 429 while the first is open, and a 101 when it has ended."""
    with (
        WebSocketUpstream() as echo,
        VeloxProcess({**echo.env(), "VELOX_RATE_LIMIT_CONCURRENCY": "1"}) as velox,
        contextlib.ExitStack() as stack,
    ):
        head, first = shake_hands(velox, stack)
        assert head.startswith(b"HTTP/1.1 101 ")
        for _ in range(2):
            head, _ = shake_hands(velox, stack)
            assert head.startswith(b"HTTP/1.1 429 ") and b"retry-after-ms: 1000" in head
        first.close()
        until(lambda: shake_hands(velox, stack)[0].startswith(b"HTTP/1.1 101 "), "the slot is free", 10.0)
        refused = 'velox_limit_decisions_total{decision="refused",scope="gateway",unit="concurrency"}'
        velox.wait_metric(refused, lambda n: n >= 2)


def test_tunnel_is_a_request_and_costs_no_tokens() -> None:
    """The 101 tells what is left of both."""
    limits = json.dumps([{"per": "gateway", "rpm": 6, "burst": 2, "tpm": 100}])
    env = {"VELOX_LIMITS": limits, "VELOX_RATE_LIMIT_MAX_WAIT": "0s"}
    with (
        WebSocketUpstream() as echo,
        VeloxProcess({**echo.env(), **env}) as velox,
        contextlib.ExitStack() as stack,
    ):
        for status, left in ((b"101", b"1"), (b"101", b"0"), (b"429", b"0")):
            head, _ = shake_hands(velox, stack)
            assert head.startswith(b"HTTP/1.1 " + status)
            assert b"x-ratelimit-remaining-requests: " + left in head
            assert b"x-ratelimit-remaining-tokens: 100" in head


def test_tunnels_leave_open_files_for_clients(tmp_path: Path) -> None:
    """With few of them, idle connections to upstreams are closed for tunnels; nobody is reset for it."""
    most, slow = 48, "--ttft 1500ms --token-rate 0 --tokens 3"
    with named("a", "b", a=slow, b=slow) as sims, WebSocketUpstream() as echo, contextlib.ExitStack() as stack:
        rows = [*sims.values(), {"name": "echo", "origin": echo.url}]
        models = {"a": "a", "b": "b", "echo": "m"}
        routes = [{"name": name, "match": {"models": [models[name]]}, "to": name} for name in models]
        file = tmp_path / "velox.yaml"
        file.write_text(yaml.safe_dump({"upstreams": rows, "routes": routes}))
        env = {"VELOX_CONFIG": str(file), "VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0"}
        few_files = ("bash", "-c", 'ulimit -n 256; exec "$@"', "-")
        velox = stack.enter_context(VeloxProcess({**env, "VELOX_UPSTREAM_HTTP2": "off"}, launcher=few_files))

        def status(model: str) -> int:
            body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}]}).encode()
            return velox.request("POST", "/v1/chat/completions", body).status

        with ThreadPoolExecutor(most) as clients:
            for model in ("a", "b"):  # so many connections are idle then
                assert set(clients.map(status, [model] * (most - 2))) == {200}
            for _ in range(most):
                assert shake_hands(velox, stack)[0].startswith(b"HTTP/1.1 101 ")
            assert set(clients.map(status, ["a", "b"] * (most // 2 - 1))) == {200}
