"""The admin listener on a real socket, in its own process, as clients meet it."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.sockets.profiling.profile_workers import busy_work, start_worker, stop_worker
from velox.admin.app import AdminApp
from velox.admin.health import Readiness
from velox.admin.pprof import ProfilePage
from velox.admin.running.pages import RunningPages
from velox.admin.server import MAX_CONNECTIONS, run
from velox.profiling.workers import Workers

Address = tuple[str, int]
PAGE = b"# TYPE velox_up gauge\nvelox_up 1.0\n"


def broken_page() -> bytes:
    raise RuntimeError("a bug in the metrics page")


def start_admin(sock: socket.socket, channels: list[socket.socket], *, broken: bool = False) -> int:
    """Fork an admin process over real channels; return its id."""
    pid = os.fork()
    if pid:
        return pid

    workers = Workers(channels)
    app = AdminApp(
        metrics=broken_page if broken else lambda: PAGE,
        ready=lambda: Readiness(alive=not broken, ready=not broken, reasons=("a reason",) if broken else ()),
        profiles=ProfilePage(workers.profile, workers.heap),
        running=RunningPages(workers.ask),
    )
    code = 1
    try:
        run(sock, app)
        code = 0
    finally:
        os._exit(code)


@contextlib.contextmanager
def admin_of(*workers: Callable[[], Awaitable[None]]) -> Iterator[Address]:
    """Run an admin process, and the workers that it takes profiles of."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in workers]
    pids = [start_worker(theirs, work) for (_, theirs), work in zip(pairs, workers, strict=True)]
    with socket.create_server(("127.0.0.1", 0)) as sock:
        pids.append(start_admin(sock, [ours for ours, _ in pairs]))
        yield sock.getsockname()
    for pid in pids:
        stop_worker(pid)
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


@pytest.fixture(scope="module")
def admin() -> Iterator[Address]:
    """An admin process; no worker takes a core from the tests that need none."""
    with admin_of() as address:
        yield address


@pytest.fixture(scope="module")
def busy_admin() -> Iterator[Address]:
    """An admin process with two busy workers."""
    with admin_of(busy_work, busy_work) as address:
        yield address


def get(address: Address, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection(*address, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply, reply.read()
    finally:
        connection.close()


def raw(address: Address, request: bytes) -> bytes:
    """Send a request, which asks for the connection's end or is refused; return all that comes."""
    with socket.create_connection(address, timeout=20) as sock:
        sock.sendall(request)
        reply = b""
        while more := sock.recv(65536):
            reply += more
        return reply


def test_metrics_page_is_read_by_a_prometheus_parser(admin: Address) -> None:
    """Prometheus gets its text format and a content type that names it."""
    reply, body = get(admin, "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")

    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=")
    assert [family.name for family in text_string_to_metric_families(body.decode())] == ["velox_up"]


@pytest.mark.parametrize("path", ["/", "/debug/pprof/", "/metrics", "/healthz", "/readyz"])
def test_head_answers_as_get_without_a_body(admin: Address, path: str) -> None:
    """HEAD has GET's status and headers."""
    of_get, body = get(admin, path)
    of_head, nothing = get(admin, path, "HEAD")

    assert (of_get.status, of_head.status) == (200, 200)
    assert of_head.getheaders() == of_get.getheaders()
    assert int(of_head.headers["Content-Length"]) == len(body)
    assert nothing == b""


@pytest.mark.parametrize(
    "path",
    ["/metrics/", "/Metrics", "/%6detrics", "/debug/pprof/tasks/", "/debug/pprof/profile/", "/v1/models"],
)
def test_path_other_than_the_listed_is_404(admin: Address, path: str) -> None:
    """B-51: there is one way to spell a page, and the reply repeats nothing of the request."""
    reply = raw(admin, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())

    assert reply.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert reply.endswith(b"there is no such page; / lists what there is\n")


@pytest.mark.parametrize(
    "target",
    [
        "/debug/pprof/../", "/debug/pprof/../../metrics", "/./metrics", "//metrics", "/metrics%00", "/metrics;x",
        "/\\metrics", "http://127.0.0.1/metrics", "http://evil.example/metrics", "*", "localhost:6060",
    ],
)  # fmt: skip
def test_target_that_two_servers_could_read_in_two_ways_is_400(admin: Address, target: str) -> None:
    """B-51: also a URL, but for one with a name of the listener; nothing of it is repeated."""
    reply = raw(admin, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    assert reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"metrics" not in reply and b"evil" not in reply


def test_post_with_a_body_is_405_and_the_reply_arrives(admin: Address) -> None:
    """B-51: the reply is not lost in a reset because the body was not read."""
    with socket.create_connection(admin, timeout=10) as sock:
        sock.sendall(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n" + bytes(60000))
        time.sleep(0.2)
        reply = sock.recv(65536)

    assert reply.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"\r\nallow: GET, HEAD\r\n" in reply


def test_host_foreign_is_403(admin: Address) -> None:
    """DNS rebinding gets nothing."""
    reply, body = get(admin, "/metrics", Host="evil.example")

    assert reply.status == 403
    assert b"velox_up" not in body


@pytest.mark.parametrize(("size", "status"), [(32768, b"200"), (32769, b"431")])
def test_head_size_at_its_limit(admin: Address, size: int, status: bytes) -> None:
    """32 KiB of head are read, with its empty line; a byte more is refused."""
    start = (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
        + b"x" * 16000
        + b"\r\nY: "
        + b"y" * 16000
        + b"\r\nZ: "
    )
    head = start + b"z" * (size - len(start) - 4) + b"\r\n\r\n"

    assert raw(admin, head).startswith(b"HTTP/1.1 " + status)


def test_head_never_finished_is_408(admin: Address) -> None:
    """A client that does not finish its head is told so after 5 s."""
    started = time.monotonic()
    reply = raw(admin, b"GET / HTTP/1.1\r\nHost: loc")

    assert reply.startswith(b"HTTP/1.1 408")
    assert 4.5 < time.monotonic() - started < 7.5


def test_crowd_of_idle_connections_keeps_no_probe_out(admin: Address) -> None:
    """1,000 that send nothing, or a byte now and then: each that comes drops the oldest, and a probe is answered."""
    held = []
    try:
        for n in range(1000):
            sock = socket.create_connection(admin, timeout=10)
            held.append(sock)
            if n % 2:
                sock.sendall(b"GET /metrics HT")
            if n % 100 == 99:
                assert get(admin, "/healthz")[0].status == 200
                assert get(admin, "/metrics")[0].status == 200
        assert sum(is_dropped(sock) for sock in held) >= 1000 - MAX_CONNECTIONS
    finally:
        for sock in held:
            sock.close()
    assert get(admin, "/healthz")[0].status == 200


def is_dropped(sock: socket.socket) -> bool:
    """Tell whether the other side has ended a connection, or does before long."""
    sock.settimeout(0.01)
    try:
        return not sock.recv(1)
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_unix_socket_serves_the_same_pages(tmp_path: Path) -> None:
    """`VELOX_ADMIN_LISTEN=unix:PATH`: who may open the file may ask."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "admin.sock"))
        sock.listen()
        pid = start_admin(sock, [])
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(10)
                client.connect(str(tmp_path / "admin.sock"))
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                reply = client.recv(65536)
        finally:
            stop_worker(pid)

    assert reply.startswith(b"HTTP/1.1 200 OK\r\n") and reply.endswith(b"\r\n\r\nok\n")


@pytest.mark.parametrize("seconds", ["0", "61", "99999", "x"])
def test_profile_bad_seconds_is_400(admin: Address, seconds: str) -> None:
    """B-51: no profile is taken for a bad query."""
    assert get(admin, f"/debug/pprof/profile?seconds={seconds}")[0].status == 400


def test_profile_second_at_once_is_429_and_other_pages_answer(busy_admin: Address) -> None:
    """B-51: one profile at a time; nothing else waits for it."""
    first: list[int] = []
    thread = threading.Thread(
        target=lambda: first.append(get(busy_admin, "/debug/pprof/profile?seconds=2&format=folded")[0].status)
    )
    thread.start()
    time.sleep(0.5)
    second, _ = get(busy_admin, "/debug/pprof/profile?seconds=1")
    health, _ = get(busy_admin, "/healthz")
    assert first == [], "the profile still runs"
    thread.join()

    assert (second.status, health.status) == (429, 200)
    assert first == [200]


def test_profile_client_gone_frees_the_next_one(busy_admin: Address) -> None:
    """A profile that nobody waits for does not block the next for a minute."""
    with socket.create_connection(busy_admin) as sock:
        sock.sendall(b"GET /debug/pprof/profile?seconds=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.3)
    time.sleep(0.3)

    reply, body = get(busy_admin, "/debug/pprof/profile?seconds=1&format=folded")

    assert reply.status == 200
    assert b"busy_work" in body


@pytest.mark.parametrize("agent", ["curl/8.0", "Go-http-client/1.1"])
def test_profile_is_a_file_for_every_client(busy_admin: Address, agent: str) -> None:
    """curl keeps it, `go tool pprof` reads it from its address."""
    file, pprof = get(busy_admin, "/debug/pprof/profile?seconds=1", **{"Accept": "*/*", "User-Agent": agent})

    assert file.headers["Content-Type"] == "application/octet-stream"
    assert b"busy_work" in gzip.decompress(pprof)


@pytest.mark.skipif(shutil.which("go") is None, reason="Go's pprof is not installed")
def test_profile_is_read_by_go_tool_pprof(busy_admin: Address, tmp_path: Path) -> None:
    """`go tool pprof URL` works as with a Go program."""
    url = f"http://{busy_admin[0]}:{busy_admin[1]}/debug/pprof/profile?seconds=2"
    done = subprocess.run(
        ["go", "tool", "pprof", "-top", url],
        env=os.environ | {"PPROF_TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,  # the assertion below shows what it said
    )

    assert done.returncode == 0, done.stderr
    assert "Type: cpu" in done.stdout
    assert "Duration: 2s" in done.stdout
    top = next(line for line in done.stdout.splitlines() if "busy_work" in line)
    assert float(top.split()[1].rstrip("%")) > 50, top


def test_page_that_fails_is_500_and_others_go_on(capfd: pytest.CaptureFixture[str]) -> None:
    """A bug in one page stays in it, and is logged; a gateway that is not alive or ready says so."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        pid = start_admin(sock, [], broken=True)
        address = sock.getsockname()
        try:
            metrics, body = get(address, "/metrics")
            health, _ = get(address, "/healthz")
            ready, why = get(address, "/readyz")
        finally:
            stop_worker(pid)

    assert (metrics.status, health.status, ready.status) == (500, 503, 503)
    assert b"bug" not in body
    assert "an admin page failed: bug: RuntimeError at broken_page:" in capfd.readouterr().err
    assert why == b'{"ready":false,"reasons":["a reason"]}\n'


def test_sigterm_ends_the_process_at_once_sigint_does_not() -> None:
    """The supervisor says when to leave; Ctrl-C in a terminal does not take the health pages away."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        pid = start_admin(sock, [])
        address = sock.getsockname()
        assert get(address, "/healthz")[0].status == 200
        os.kill(pid, signal.SIGINT)
        assert get(address, "/healthz")[0].status == 200
        held = socket.create_connection(address)
        started = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        held.close()

    assert os.waitstatus_to_exitcode(status) == 0
    assert time.monotonic() - started < 1
