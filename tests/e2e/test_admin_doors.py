"""The admin listener where others can reach it: token, names, profiles, crowds; and that no page shows a secret."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.harness import VeloxProcess, until
from tests.e2e.test_admin import load
from tests.e2e.tls_clients import TlsFiles
from tests.e2e.tools import Client, covers, run_velox
from velox.build import BUILD

TOKEN = "admin-token-of-the-test"
WITH_TOKEN = {"authorization": f"Bearer {TOKEN}"}
OPEN = {"VELOX_ADMIN_LISTEN": "0.0.0.0:0", "VELOX_ADMIN_TOKEN": TOKEN}
PROFILE = "/debug/pprof/profile?seconds=1&format=folded"


@contextlib.contextmanager
def simulated(**settings: str) -> Iterator[VeloxProcess]:
    """Run a gateway of one worker with its own simulator and no limit; settings without VELOX_."""
    named = {f"VELOX_{name.upper()}": text for name, text in settings.items()}
    env = {"VELOX_WORKERS": "1", "VELOX_RATE_LIMIT_RPM": "0", **named}
    with VeloxProcess(env, ("serve", "--sim")) as velox:
        yield velox


def status(velox: VeloxProcess, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> int:
    """Ask the admin listener; return the status."""
    connection = http.client.HTTPConnection(velox.admin_url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        return connection.getresponse().status
    finally:
        connection.close()


@covers("VELOX_ADMIN_TOKEN", "VELOX_ADMIN_TOKEN_FILE")
def test_admin_beyond_loopback_asks_for_the_token(tmp_path: Path) -> None:
    """Without one it does not start; with one, only probes need none. The token is in no line."""
    refused = run_velox({"VELOX_ADMIN_LISTEN": "0.0.0.0:0"}, "serve", "--sim")
    assert refused.returncode == 2 and "VELOX_ADMIN_TOKEN" in refused.stderr.splitlines()[1]
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    for setting in ({"admin_token": TOKEN}, {"admin_token_file": str(file)}):
        with simulated(admin_listen="0.0.0.0:0", **setting) as velox:
            for path in ("/healthz", "/livez", "/readyz"):
                until(lambda path=path: status(velox, path) == 200, path)  # type: ignore[misc]
            assert velox.admin("/readyz").json() == {"ready": True}
            for path in ("/", "/metrics", "/debug/pprof/", PROFILE, "/absent"):
                assert status(velox, path) == 401, path
                assert status(velox, path, {"authorization": f"Bearer {TOKEN}x"}) == 401, path
            assert velox.admin("/readyz", WITH_TOKEN).json() == {"ready": True, "reasons": []}
            assert status(velox, "/metrics", WITH_TOKEN) == 200
            assert status(velox, "/absent", WITH_TOKEN) == 404
        assert TOKEN not in "".join(velox.stderr.lines + velox.stdout.lines)


@covers("VELOX_ADMIN_VIEWER_TOKEN")
def test_viewer_token_reads_only() -> None:
    """Metrics yes, profiles and reloads no. It needs the admin token, and must be another one."""
    viewer = {"authorization": "Bearer viewer-of-the-test"}
    for wrong in ({}, {"VELOX_ADMIN_TOKEN": "viewer-of-the-test"}):
        refused = run_velox({"VELOX_ADMIN_VIEWER_TOKEN": "viewer-of-the-test", **wrong}, "serve", "--sim")
        assert refused.returncode == 2 and "VELOX_ADMIN_VIEWER_TOKEN" in refused.stderr
        assert "viewer-of-the-test" not in refused.stderr
    with simulated(admin_token=TOKEN, admin_viewer_token="viewer-of-the-test") as velox:
        assert status(velox, "/metrics", viewer) == status(velox, "/metrics", WITH_TOKEN) == 200
        assert (status(velox, PROFILE, viewer), status(velox, "/reload", viewer, "POST")) == (403, 403)


@covers("VELOX_ADMIN_TLS_CERT", "VELOX_ADMIN_TLS_KEY")
def test_admin_speaks_tls_and_follows_its_files(tmp_path: Path) -> None:
    """Pages and `velox reload` over TLS; a renewed certificate is shown without a restart."""
    files = TlsFiles(tmp_path)
    cert = {"VELOX_ADMIN_TLS_CERT": str(files.cert)}
    refused = run_velox(cert, "serve", "--sim")
    assert refused.returncode == 2 and "expected VELOX_ADMIN_TLS_KEY with it" in refused.stderr
    with simulated(admin_tls_cert=str(files.cert), admin_tls_key=str(files.key)) as velox:
        port = int(velox.admin_url.removeprefix("https://127.0.0.1:"))

        def shown() -> str:
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=files.context())
            with contextlib.closing(connection):
                connection.request("GET", "/healthz")
                assert isinstance(connection.sock, ssl.SSLSocket)
                digest = hashlib.sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
                assert connection.getresponse().status == 200
            return digest

        def not_after_s() -> float:
            """Return what the metrics say."""
            with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", port, context=files.context())) as asked:
                asked.request("GET", "/metrics")
                page = asked.getresponse().read().decode()
            return float(page.partition("\nvelox_admin_tls_certificate_not_after_seconds ")[2].partition("\n")[0])

        assert shown() == files.digest
        assert not_after_s() > time.time()
        assert run_velox(cert, "reload", "--admin", f"127.0.0.1:{port}").returncode == 0
        assert run_velox({**cert, "VELOX_ADMIN_LISTEN": f"127.0.0.1:{port}"}, "health").stdout == "healthy\n"
        files.rotate()
        until(lambda: shown() == files.digest, "the new certificate is shown")
        assert run_velox(cert, "reload", "--admin", f"127.0.0.1:{port}").returncode == 0
        files.cert.write_text("no certificate")
        velox.wait_log(lambda line: "the new TLS certificate can't be used" in line)
        healthy = run_velox({**cert, "VELOX_ADMIN_LISTEN": f"127.0.0.1:{port}"}, "health")
        assert healthy.stdout == "healthy\n", "whoever asks must not stop a gateway that goes on with the one before"


def test_admin_table_of_bad_requests() -> None:
    """B-51, on a listener that is open: other Host, no token, POST, too many seconds, a path with dots."""
    table: list[tuple[int, str, str, dict[str, str]]] = [
        (403, "GET", "/metrics", {**WITH_TOKEN, "host": "evil.example"}),
        (403, "GET", "/healthz", {"host": "evil.example"}),
        (401, "GET", "/metrics", {}),
        (401, "GET", f"/metrics?token={TOKEN}", {}),
        (405, "POST", "/metrics", WITH_TOKEN),
        (405, "DELETE", "/debug/pprof/profile", WITH_TOKEN),
        (400, "GET", "/debug/pprof/profile?seconds=99999", WITH_TOKEN),
        (400, "GET", "/debug/pprof/profile?seconds=1&seconds=1", WITH_TOKEN),
        (400, "GET", "/debug/pprof/../", WITH_TOKEN),
        (404, "GET", "/debug/pprof/threads", WITH_TOKEN),
        (404, "GET", "/debug/pprof/cmdline", WITH_TOKEN),
    ]
    with simulated(admin_listen="0.0.0.0:0", admin_token=TOKEN) as velox:
        for wanted, method, path, headers in table:
            assert status(velox, path, headers, method) == wanted, (method, path)


@covers("VELOX_ADMIN_HOSTS")
def test_admin_hosts_are_names_that_may_be_asked_for() -> None:
    """As Prometheus asks for a service by its name; no other name is served, whatever its port."""
    with simulated(admin_hosts="Velox.monitoring.svc, velox") as velox:
        for host in ("velox", "velox:6060", "VELOX.Monitoring.svc.", "localhost", "127.0.0.1"):
            assert status(velox, "/metrics", {"host": host}) == 200, host
        for host in ("velox.evil.example", "evil", "monitoring.svc"):
            assert status(velox, "/metrics", {"host": host}) == 403, host


@covers("VELOX_PROFILE_INTERVAL")
def test_profiles_are_a_minute_apart_on_an_open_listener() -> None:
    """The second one is told when to come back. On loopback there is no pause, but one can be set."""
    with simulated(admin_listen="0.0.0.0:0", admin_token=TOKEN) as velox:
        assert velox.admin(PROFILE, WITH_TOKEN).status == 200
        refused = velox.admin(PROFILE, WITH_TOKEN)
        assert refused.status == 429
        assert 0 < int(refused.header("retry-after") or 0) <= 60
    with simulated() as velox:
        assert [velox.admin(PROFILE).status for _ in range(2)] == [200, 200]
    with simulated(profile_interval="1h") as velox:
        assert [velox.admin(PROFILE).status for _ in range(2)] == [200, 429]


@covers("VELOX_PROFILING")
def test_profiling_off_has_no_profile_pages() -> None:
    """404, as if there had never been any; the other pages stay."""
    with simulated(profiling="off") as velox:
        for path in ("/debug/pprof", "/debug/pprof/", PROFILE):
            assert status(velox, path) == 404, path
        assert status(velox, "/metrics") == 200
        assert b"pprof" not in velox.admin("/").body


@covers("VELOX_ADMIN_LISTEN")
def test_admin_on_a_unix_socket(tmp_path: Path) -> None:
    """No port is open, no token is needed: the file's mode is the guard."""
    path = tmp_path / "admin.sock"
    with simulated(admin_listen=f"unix:{path}") as velox, socket.socket(socket.AF_UNIX) as client:
        assert velox.admin_url == f"unix:{path}"
        assert not stat.S_IMODE(os.stat(path).st_mode) & 0o022, "no one else may write to it, so connect"
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with client.makefile("rb") as reply:
            assert reply.read().startswith(b"HTTP/1.1 200 OK\r\n")
    assert not path.exists(), "the file goes with the gateway"


def test_secrets_are_on_no_page_and_in_no_profile(tmp_path: Path) -> None:
    """Keys, tokens, bodies, headers and the environment: what a page tells is counted or named in the code."""
    secrets = (
        "vk-of-a-client",
        "sk-of-the-provider",
        TOKEN,
        "vk-in-the-file",
        "secret-in-a-body",
        "secret-in-a-header",
    )
    file = tmp_path / "keys"
    file.write_text("vk-in-the-file\n")
    env = {
        "VELOX_WORKERS": "1",
        "VELOX_RATE_LIMIT_RPM": "0",
        "VELOX_ADMIN_TOKEN": TOKEN,
        "VELOX_API_KEYS": "vk-of-a-client",
        "VELOX_API_KEYS_FILE": str(file),
        "OPENAI_API_KEY": "sk-of-the-provider",
    }
    body = b'{"model":"secret-in-a-body","max_tokens":1,"messages":[{"role":"user","content":"secret-in-a-body"}]}'
    headers = {"authorization": "Bearer vk-of-a-client", "x-note": "secret-in-a-header"}
    over = threading.Event()
    with VeloxProcess(env, ("serve", "--sim")) as velox:

        def push() -> None:
            with Client(velox) as client:
                while not over.is_set():
                    client.send("POST", "/v1/chat/completions", body, headers)
                    assert client.read().status == 200
                    client.send("GET", "/v1/models", headers=headers)
                    assert client.read().status == 200

        threads = [threading.Thread(target=push) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            pages = [velox.admin(path, WITH_TOKEN).body for path in ("/", "/metrics", "/readyz", "/debug/pprof/")]
            for form in ("folded", "pprof"):
                page = velox.admin(f"/debug/pprof/profile?seconds=1&hz=500&format={form}", WITH_TOKEN)
                assert page.status == 200
                pages.append(gzip.decompress(page.body) if form == "pprof" else page.body)
        finally:
            over.set()
            for thread in threads:
                thread.join()
    seen = {"plain": b"exchange.py", "compiled": b"velox/runtime/worker.py"}
    assert seen[BUILD] in pages[-1], "the profile saw the requests"
    everything = b"\n".join(pages)
    environment = os.environ["PATH"].encode()
    assert [secret for secret in secrets if secret.encode() in everything] == []
    assert environment not in everything and str(file).encode() not in everything


@pytest.mark.parametrize(("hostile", "n"), [("idle", 1000), ("slow heads", 300), ("large heads", 300), ("junk", 300)])
def test_crowd_on_the_admin_port_leaves_workers_and_probes_alone(hostile: str, n: int) -> None:
    """Connections that misbehave: bounded in descriptors, and every request and every probe is answered."""
    sent = {
        "idle": b"",
        "slow heads": b"GET /metrics HTTP/1.1\r\nHost: local",
        "large heads": b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 64 * 1024,
        "junk": os.urandom(2048) + b"\r\n\r\n",
    }[hostile]
    with simulated() as velox, load(velox), contextlib.ExitStack() as held:
        # It has just started, and is asked before it has found out that it reaches its upstream.
        until(lambda: status(velox, "/readyz") == 200, "the gateway is ready")
        address = velox.admin_url.removeprefix("http://").rpartition(":")
        for number in range(n):
            client = held.enter_context(socket.create_connection((address[0], int(address[2])), timeout=10))
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
            if number % 100 == 99:
                assert status(velox, "/healthz") == 200
                samples = velox.metrics()
                assert samples['process_open_fds{process="admin"}'] < 150
        with Client(velox) as data:
            assert all(data.ask().status == 200 for _ in range(20))
        assert status(velox, "/readyz") == 200
