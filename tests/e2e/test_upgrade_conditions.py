"""Upgrades under hard conditions: the running gateway is left as it is, or nothing fails.

What an "other version" does at its start is in a module that Python loads first (sitecustomize).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml
from websockets.sync.client import connect

from tests.e2e.harness import REPOSITORY, VeloxProcess, until
from tests.e2e.redis_server import redis_server
from tests.e2e.steady_load import SteadyLoad
from tests.e2e.test_http2_ingress import POST
from tests.e2e.test_upgrade import Gateway, ask, running
from tests.e2e.tls_clients import TlsFiles
from tests.e2e.tools import CHAT, CHAT_STREAM, free_port, request_bytes
from tests.e2e.watching import start_time
from tests.patience import PATIENCE_S
from tests.postgres_server import postgres_server
from tests.sockets.net.core_http2 import PeerClient

_READY: Final = {"VELOX_UPGRADE_TIMEOUT": "120s"}
# One that speaks another form of the handover, and one that knows nothing of one.
_OTHER_FORM: Final = "import velox.runtime.processes.handover as h\nh.PROTOCOL = 0\n"
_WITHOUT: Final = "import velox.runtime.processes.handover as h\nh.VARIABLE = 'NO_SUCH'\n"
# One that does not go on until a file is there.
_SLOW: Final = "import os, time\nwhile not os.path.exists({go!r}):\n    time.sleep(0.05)\n"


@contextlib.contextmanager
def other_version(gateway: Gateway, code: str) -> Iterator[None]:
    """Let the next version do that at its start."""
    file = gateway.folder / "sitecustomize.py"
    file.write_text(code)
    yield
    file.unlink()


def begun(gateway: Gateway) -> subprocess.Popen[str]:
    """Begin an upgrade; return once its next version runs."""
    n = gateway.count("the next version is started")
    command = [sys.executable, "-m", "velox", "upgrade", "--admin", gateway.velox.admin_url.removeprefix("http://")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("VELOX_")}
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: gateway.count("the next version is started") > n, "the next version is started")
    return process


def next_versions(gateway: Gateway) -> list[int]:
    """Return the processes of this gateway's command line that live, but its own."""
    own = Path(f"/proc/{gateway.velox.pid}/cmdline").read_bytes()
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != gateway.velox.pid:
            with contextlib.suppress(OSError):
                is_same = (path / "cmdline").read_bytes() == own and start_time(int(path.name))
                environ = (path / "environ").read_bytes()
                if is_same and f"VELOX_CONFIG={gateway.folder}/".encode() in environ:
                    found.append(int(path.name))
    return found


@pytest.mark.parametrize(
    ("code", "told"),
    [(_OTHER_FORM, "hands over by form 1, this one takes form 0"), (_WITHOUT, "VELOX_HANDOVER")],
    ids=["another form", "one without upgrades"],
)
def test_older_version_changes_nothing(tmp_path: Path, code: str, told: str) -> None:
    """It can't take over, and says so; requests go on, and the version that is installed then can."""
    with running(tmp_path, {"workers": 1}, **_READY) as gateway, SteadyLoad(gateway.velox.port, rate=5) as load:
        workers = gateway.workers(gateway.velox.pid)
        with other_version(gateway, code):
            done = gateway.run("upgrade")
        assert done.returncode == 1 and told in done.stderr, done
        assert gateway.workers(gateway.velox.pid) == workers
        until(lambda: gateway.run("upgrade").returncode == 0, "an upgrade to one that can")
    assert load.failures == [] and load.done["request"], load.done


def test_two_upgrades_at_once_are_one(tmp_path: Path) -> None:
    """Who comes second is told; so is the log for a signal. The first goes on to its end."""
    go = tmp_path / "go"
    with running(tmp_path, {"workers": 1}, **_READY) as gateway:
        with other_version(gateway, _SLOW.format(go=str(go))):
            first = begun(gateway)
            second = gateway.run("upgrade")
            assert second.returncode == 1 and "an upgrade is under way already" in second.stderr, second
            gateway.velox.signal(signal.SIGUSR2)
            gateway.velox.wait_log(lambda line: "an upgrade is under way already" in line)
            assert ask(gateway.velox) == 200
            go.touch()
            out, err = first.communicate(timeout=4 * PATIENCE_S)
        assert first.returncode == 0 and "serves now" in out, (out, err)
        assert gateway.count("the next version is started") == 1
        assert ask(gateway.velox) == 200


def test_gateway_that_is_stopped_during_an_upgrade_ends_and_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM while the next version starts: that one ends too. While it drains, an upgrade is refused."""
    with socket.create_server(("127.0.0.1", 0)) as silent, contextlib.ExitStack() as held:
        entry = {"name": "silent", "origin": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        config = {"workers": 1, "upstreams": [entry]}
        with running(tmp_path, config, VELOX_DRAIN_TIMEOUT="90s", **_READY) as gateway:
            client = held.enter_context(gateway.velox.connect())
            client.sendall(request_bytes("POST", "/v1/chat/completions", CHAT))
            upstream = None
            while upstream is None or not upstream.recv(65536).startswith(b"POST "):  # others warm connections up
                upstream = held.enter_context(silent.accept()[0])
            with other_version(gateway, _SLOW.format(go=str(tmp_path / "never"))):
                first = begun(gateway)
                until(lambda: bool(next_versions(gateway)), "the next version runs")
                gateway.velox.signal(signal.SIGTERM)
                out, err = first.communicate(timeout=4 * PATIENCE_S)
            assert first.returncode == 1 and "the gateway is shutting down" in err, (out, err)
            done = gateway.run("upgrade")
            assert done.returncode == 1 and "the gateway is shutting down" in done.stderr, done
            until(lambda: not next_versions(gateway), "the next version is gone")
            gateway.velox.signal(signal.SIGTERM)
            assert gateway.velox.wait() == 0


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a file system of its own, of 64 MiB."""
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64m", "tmpfs"]
    mounted = subprocess.run(["mount", *options, str(folder)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no mount here: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte in a file system; return the file that has them."""
    file = folder / "filled"
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as written:
        while True:
            written.write(bytes(1 << 16))
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as written:
        while True:
            written.write(b"x")
    return file


def test_full_disk_fails_no_request_and_loses_no_record(full_disk: Path, tmp_path: Path) -> None:
    """Log and ledger are on it. Whether the next version can begin or not, what serves goes on, with its records."""
    config = {"workers": 1, "ledger": str(full_disk / "ledger"), "log_file": str(full_disk / "velox.log")}
    env = {"VELOX_CONFIG": str(tmp_path / "velox.yaml"), "PATH": os.environ["PATH"]}
    with pidless(tmp_path, config) as (port, admin, log):
        with SteadyLoad(port, rate=5) as load:
            until(lambda: load.done["request"] > 3, "requests")
            filled = fill(full_disk)
            command = [sys.executable, "-m", "velox", "upgrade", "--admin", admin]
            done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
            assert done.returncode in (0, 1), done
            n = load.done["request"]
            until(lambda: load.done["request"] > n + 5, "requests are served still")
            filled.unlink()
        assert load.failures == []

        def n_recorded() -> int:
            command = [sys.executable, "-m", "velox", "usage", "--calls", "--format", "jsonl"]
            found = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False)
            return len(found.stdout.splitlines())

        until(lambda: n_recorded() == load.done["request"], "each call has one record", 2 * PATIENCE_S)
        assert log.exists()


@contextlib.contextmanager
def pidless(folder: Path, config: dict[str, object]) -> Iterator[tuple[int, str, Path]]:
    """Run a gateway whose log is in a file; give its port, its admin address, and that file."""
    port, admin, log = free_port(), f"127.0.0.1:{free_port()}", Path(str(config["log_file"]))
    file = folder / "velox.yaml"
    file.write_text(yaml.safe_dump({**config, "listen": f"127.0.0.1:{port}", "admin_listen": admin}))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "VELOX_CONFIG": str(file), **_READY}
    command = [sys.executable, "-m", "velox", "serve", "--sim"]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=env, start_new_session=True)
    try:
        until(lambda: log.exists() and " ready in " in log.read_text(), "it is ready", 2 * PATIENCE_S)
        yield port, admin, log
        process.terminate()
        assert process.wait(2 * PATIENCE_S) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_workers_and_admin_listener_change_without_a_refused_connection(tmp_path: Path) -> None:
    """A reload says that they do not change by it, and how they do."""
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with running(tmp_path, {"workers": 1, "admin_listen": first}, VELOX_ADMIN_LISTEN="", **_READY) as gateway:
        with SteadyLoad(gateway.velox.port, rate=10, streams=2, websockets=1) as load:
            for n, (workers, admin) in enumerate(((3, second), (2, first)), 1):
                gateway.configure(workers=workers, admin_listen=admin)
                done = gateway.run("reload")
                assert done.returncode == 0, done
                assert "needs a restart, or `velox upgrade`, which refuses nothing: " in done.stdout, done
                assert "workers" in done.stdout and "admin_listen" in done.stdout, done
                pid = gateway.upgrade()
                gateway.velox.admin_url = f"http://{admin}"
                gateway.wait_alone(n)
                assert len(gateway.workers(pid)) == workers
                assert gateway.velox.admin("/readyz").status == 200
        assert load.failures == [], load.failures
        assert min(load.done[kind] for kind in ("request", "stream", "websocket")) > 0, load.done


def test_http2_streams_outlive_an_upgrade(tmp_path: Path) -> None:
    """Those that are open come to their end; GOAWAY (RFC 9113 §6.8) says that the next ones go elsewhere."""
    sim = "--ttft 50ms --token-rate 10 --tokens 60"

    async def main(gateway: Gateway) -> None:
        sock = socket.create_connection(("127.0.0.1", gateway.velox.port))
        sock.setblocking(False)
        with sock:
            client = PeerClient(sock)
            await client.until(lambda: client.http2.outbound_flow_control_window > 65_535)
            streams = [client.request(POST, CHAT_STREAM) for _ in range(3)]
            await client.until(lambda: all(client.bodies[each] for each in streams))
            upgrade = asyncio.create_task(asyncio.to_thread(gateway.upgrade))
            await client.until(lambda: len(client.ended) == len(streams))
            assert all(b"data: [DONE]" in client.bodies[each] for each in streams)
            await upgrade
            await client.until(lambda: bool(client.goaways))
            assert client.goaways[0][1] == 0 and not client.resets
            assert await asyncio.to_thread(ask, gateway.velox) == 200

    with running(tmp_path, {"workers": 1, "listen_http2": True}, sim=sim, **_READY) as gateway:
        asyncio.run(asyncio.wait_for(main(gateway), 6 * PATIENCE_S))
        gateway.wait_alone(1)


def test_tls_listener_is_handed_over(tmp_path: Path) -> None:
    """A stream and a WebSocket over TLS outlive it; new connections get the certificate that the files have by then."""
    files = TlsFiles(tmp_path)
    with running(tmp_path, {"workers": 1}, **files.env(), **_READY) as gateway:
        context, old = files.context(), files.digest
        url = f"wss://127.0.0.1:{gateway.velox.port}/v1/realtime?model=m"
        with connect(url, ssl=context) as ws, httpx.Client(verify=context, http2=False) as client:
            assert json.loads(ws.recv())["type"] == "session.created"
            body = {"model": "m", "messages": [], "stream": True}
            with client.stream("POST", f"{gateway.velox.base_url}/v1/chat/completions", json=body) as reply:
                lines = reply.iter_lines()
                next(lines)
                files.rotate()
                gateway.upgrade()
                assert "data: [DONE]" in list(lines)
            ws.send('{"type": "response.create"}')
            while json.loads(ws.recv())["type"] != "response.done":
                pass
        with httpx.Client(verify=context) as client:
            answer = client.post(f"{gateway.velox.base_url}/v1/chat/completions", json={"model": "m", "messages": []})
            assert answer.status_code == 200
        assert files.digest != old
        gateway.wait_alone(1)


@pytest.mark.more
def test_limit_over_redis_holds_over_an_upgrade(tmp_path: Path) -> None:
    """One limit, which the lease manager of one version after the other counts: never more than it allows."""
    limits = [{"per": "gateway", "rpm": 1, "burst": 10}]
    with redis_server() as redis:
        env = {"VELOX_REDIS_URL": redis.url, "VELOX_REDIS_TIMEOUT": "2s", "VELOX_RATE_LIMIT_MAX_WAIT": "0s"}
        with running(tmp_path, {"workers": 1, "limits": limits}, **env, **_READY) as gateway:
            statuses = [ask(gateway.velox) for _ in range(6)]
            gateway.upgrade()
            gateway.wait_alone(1)
            until(lambda: gateway.velox.metric("velox_redis_up") == 1, "its lease manager has Redis")
            statuses += [ask(gateway.velox) for _ in range(10)]
    # One more a minute.
    assert set(statuses) == {200, 429} and statuses.count(200) <= 10 + 2, statuses


@pytest.mark.more
def test_records_in_postgres_hold_over_upgrades(tmp_path: Path) -> None:
    """Each call is one row, whichever version served it."""
    with postgres_server() as server:
        config = {"workers": 1, "ledger": str(tmp_path / "ledger"), "ledger_database": server.database()}
        with running(tmp_path, config, **_READY) as gateway:
            with SteadyLoad(gateway.velox.port, rate=5, streams=1) as load:
                for n in (1, 2):
                    gateway.upgrade()
                    gateway.wait_alone(n)
            assert load.failures == []
            until(lambda: gateway.velox.metric("velox_ledger_waiting_records") == 0, "all are kept")
            done = gateway_usage(gateway.velox, tmp_path)
    assert done == sum(load.done.values()), (done, load.done)


def gateway_usage(velox: VeloxProcess, folder: Path) -> int:
    """Return how many calls are recorded."""
    command = [sys.executable, "-m", "velox", "usage", "--calls", "--format", "jsonl"]
    env = {"VELOX_CONFIG": str(folder / "velox.yaml"), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True)
    return len(done.stdout.splitlines())
