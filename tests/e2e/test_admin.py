"""The admin listener of a running gateway: figures that agree with what was sent, pages that nothing delays."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.harness import VeloxProcess
from tests.e2e.tools import Client, clients, reason, stopped, wait_warm
from velox.build import BUILD, UNSEEN_BY_PROFILES

# Two tokens: the simulator takes its time for each.
_CHAT = b'{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}'
_CHAT_STREAM = _CHAT.replace(b"{", b'{"stream":true,', 1)
# What a person or Prometheus waits at most; a page takes a few milliseconds.
PROMPT_S = 1.0


@contextlib.contextmanager
def simulated(workers: int = 2) -> Iterator[VeloxProcess]:
    """Run a gateway with its own simulator and no limit."""
    settings = {"VELOX_WORKERS": str(workers), "VELOX_RATE_LIMIT_RPM": "0"}
    with VeloxProcess(settings, ("serve", "--sim")) as velox:
        wait_warm(velox)
        yield velox


@contextlib.contextmanager
def load(velox: VeloxProcess) -> Iterator[None]:
    """Keep all workers busy: connections on which one request follows the other."""
    over = threading.Event()

    def push() -> None:
        with Client(velox) as client:
            while not over.is_set():
                assert client.ask("GET", "/v1/models").status == 200

    # By chance all connections of a few are one worker's.
    threads = [threading.Thread(target=push) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def samples(velox: VeloxProcess) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read the page as Prometheus does."""
    reply = velox.admin("/metrics")
    assert (reply.status, reply.header("content-type")) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = list(text_string_to_metric_families(reply.body.decode()))
    assert len({family.name for family in families}) == len(families), "each family stands there once"
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_show_all_workers_in_one_view() -> None:
    """Requests on both workers are one figure; only what belongs to a worker has a worker label."""
    with simulated() as velox, clients(velox, 12) as all_:
        assert len({client.worker() for client in all_}) == 2
        for client in all_:
            assert client.ask("POST", "/v1/chat/completions", _CHAT).status == 200
            assert client.ask("POST", "/v1/chat/completions", _CHAT_STREAM).status == 200
            assert client.ask("POST", "/v1/chat/completions", b"{").status == 400
        velox.wait_metric("velox_client_connections", lambda value: value >= 12)
        found = samples(velox)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value("velox_requests_total", route="chat", **{"class": "2xx"}, reason="ok") == 24
    assert value("velox_requests_total", route="chat", **{"class": "4xx"}, reason="invalid_json") == 12
    assert value("velox_upstream_attempts_total", outcome="ok") == 24
    assert value("velox_stream_end_total", reason="done") == 12
    assert value("gen_ai_server_request_duration_seconds_count", route="chat") == 12, "they were sent to nobody"
    for stream in ("yes", "no"):
        for name in ("request_duration", "time_to_first_token"):
            counts = [n for (each, labels), n in found.items() if each == f"gen_ai_server_{name}_seconds_count"
                      and labels >= {("route", "chat"), ("upstream", "default"), ("stream", stream)}]  # fmt: skip
            assert counts == [12], (name, stream)
    assert value("velox_overhead_seconds_count", phase="parse") == 24
    assert value("velox_worker_up", worker="0") == value("velox_worker_up", worker="1") == 1
    labelled = {name for name, labels in found if any(key == "worker" for key, _ in labels)}
    assert all(name.startswith("velox_worker_") for name in labelled)


def test_pages_answer_while_a_worker_is_stuck() -> None:
    """A busy or stuck worker delays neither /metrics nor /healthz nor /readyz."""
    with simulated() as velox:
        with stopped(velox.worker_pids()[0]):
            for path in ("/metrics", "/healthz", "/readyz", "/"):
                began_s = time.monotonic()
                assert velox.admin(path).status == 200
                assert time.monotonic() - began_s < PROMPT_S, path
        assert velox.request("GET", "/v1/models").status == 200


def test_profile_leaves_out_a_stuck_worker_and_names_it() -> None:
    """A worker that does not answer costs the profile its part, and no more than the 2 s it may be late."""
    with simulated() as velox, stopped(velox.worker_pids()[1]):
        began_s = time.monotonic()
        reply = velox.admin("/debug/pprof/profile?seconds=1")
        assert reply.status == 200 and b"worker 1 did not answer" in gzip.decompress(reply.body)
        assert time.monotonic() - began_s < 4.5


def test_profile_under_load_has_the_gateways_own_functions() -> None:
    """Of both workers, by file and function; it says what it can't show."""
    with simulated() as velox, load(velox):
        reply = velox.admin("/debug/pprof/profile?seconds=1", {"accept": "*/*"})
    assert (reply.status, reply.header("content-type")) == (200, "application/octet-stream")
    profile = gzip.decompress(reply.body).decode("latin-1")
    assert "worker 0" in profile and "worker 1" in profile
    assert ("velox/gateway/request/exchange.py" in profile) == (BUILD == "plain")
    assert UNSEEN_BY_PROFILES in profile


def test_profile_under_load_is_read_by_go_tool_pprof(tmp_path: Path) -> None:
    """`go tool pprof -top URL` works on the same address."""
    go = shutil.which("go")
    if go is None and os.environ.get("CI") == "true":
        pytest.fail("go is not installed: tests/install-tools.sh")
    if go is None:
        pytest.skip("go is not installed: tests/install-tools.sh")
    with simulated() as velox, load(velox):
        done = subprocess.run(
            [go, "tool", "pprof", "-top", f"{velox.admin_url}/debug/pprof/profile?seconds=1"],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PPROF_TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "Type: cpu" in done.stdout and "Duration: 1" in done.stdout
    seen = {"plain": "velox.gateway.request.exchange.Exchange._run", "compiled": "velox.runtime.worker."}
    assert seen[BUILD] in done.stdout, done.stdout


def test_data_port_serves_no_admin_page() -> None:
    """B-52: a mistake on the data port is a 404 that says where such pages are, and is not forwarded either."""
    with simulated(workers=1) as velox:
        for path in ("/metrics", "/debug/pprof/", "/admin"):
            reply = velox.request("GET", path)
            assert (reply.status, reason(reply)) == (404, "unknown_route")
            assert b"VELOX_ADMIN_LISTEN" in reply.body
        assert velox.metric('velox_upstream_attempts_total{outcome="status_4xx"}') == 0


def test_admin_port_serves_no_data() -> None:
    """The other way round: nothing that is asked of the admin port reaches an upstream."""
    with simulated(workers=1) as velox:
        for path in ("/v1/chat/completions", "/v1/models/gpt-4o", "/v1/files"):
            assert velox.admin(path).status == 404, path
        assert velox.metric('velox_upstream_attempts_total{outcome="status_2xx"}') == 0
        assert velox.metric('velox_upstream_attempts_total{outcome="status_4xx"}') == 0
        assert velox.admin("/metrics", {"host": "evil.example"}).status == 403, "DNS rebinding"


def test_stop_with_open_connections_logs_no_bug() -> None:
    """Prometheus keeps one; another is being answered. Both end with the process, as they should."""
    get = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with simulated(workers=1) as velox, contextlib.ExitStack() as stack:
        port = urlsplit(velox.admin_url).port or 0
        idle, busy = (stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(2))
        for connection in (idle, busy):
            connection.sendall(get.format("/healthz").encode())
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        busy.sendall(get.format("/debug/pprof/profile?seconds=60").encode())
        assert velox.stop() == 0
        assert not [line for line in velox.stderr.lines if "bug:" in line]
