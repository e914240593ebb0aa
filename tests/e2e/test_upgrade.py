"""Upgrades: another version takes a gateway over. Nothing fails, nothing is refused, limits and records go on.

The "next version" is the same code, started anew by the same command line, or one that was made not to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.e2e.harness import REPOSITORY, VeloxProcess, until
from tests.e2e.routed import named
from tests.e2e.steady_load import SteadyLoad
from tests.e2e.tools import Client, covers
from tests.e2e.watching import socket_inodes, start_time
from tests.patience import PATIENCE_S

_CHAT: Final = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
_SIM: Final = "--ttft 50ms --token-rate 100 --tokens 40"


class Gateway:
    """A gateway that is upgraded. velox: the process that it was started as."""

    def __init__(self, velox: VeloxProcess, folder: Path) -> None:
        self.velox: Final = velox
        self.folder: Final = folder

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a command of velox that speaks with this gateway."""
        return subprocess.run(
            [sys.executable, "-m", "velox", *args, "--admin", self.velox.admin_url.removeprefix("http://")],
            cwd=REPOSITORY,
            env={name: value for name, value in os.environ.items() if not name.startswith("VELOX_")},
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
            check=False,
        )

    def upgrade(self) -> int:
        """Upgrade it; return the process id of what serves then."""
        done = self.run("upgrade")
        assert done.returncode == 0, (done, self.velox.stderr.lines)
        return int(done.stdout.rpartition("process ")[2].partition(")")[0])

    def wait_alone(self, n: int) -> None:
        """Wait until the version before has ended, the n-th of them."""
        until(lambda: self.count("upgrade complete") >= n, "the version before has ended")

    def count(self, text: str) -> int:
        """Return how many lines of the log have a text."""
        return sum(text in line for line in self.velox.stderr.lines)

    def configure(self, **settings: object) -> None:
        """Write other settings into the file, in place of those of the same name."""
        file = self.folder / "velox.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **settings}, sort_keys=False))

    def workers(self, pid: int) -> list[int]:
        """Return the workers of a supervisor."""
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        inodes = self.velox._listener_inodes()
        return [int(each) for each in children if start_time(int(each)) and inodes & socket_inodes(int(each))]


@contextlib.contextmanager
def running(
    folder: Path, config: Mapping[str, object], *, sim: str = _SIM, launcher: tuple[str, ...] = (), **env: str
) -> Iterator[Gateway]:
    """Run a gateway from a file, in front of a simulator."""
    with named("sim", sim=sim) as sims:
        file = folder / "velox.yaml"
        file.write_text(yaml.safe_dump({"upstreams": [sims["sim"]], **config}, sort_keys=False))
        settings = {"VELOX_CONFIG": str(file), "VELOX_RATE_LIMIT_RPM": "0", "PYTHONPATH": str(folder), **env}
        with VeloxProcess(settings, by_exec=True, launcher=launcher) as velox:
            yield Gateway(velox, folder)


def ask(velox: VeloxProcess) -> int:
    """Send one request on a connection of its own; return the status."""
    return velox.request("POST", "/v1/chat/completions", _CHAT).status


@covers("VELOX_UPGRADE_TIMEOUT", "VELOX_UPGRADE_DRAIN_TIMEOUT")
def test_u6_nothing_fails_over_upgrades_and_reloads(tmp_path: Path) -> None:
    """U6: requests at a fixed rate, streams and WebSockets, while it is upgraded twice and loads its file anew."""
    with (
        running(tmp_path, {"workers": 2}, VELOX_UPGRADE_TIMEOUT="90s") as gateway,
        SteadyLoad(gateway.velox.port, rate=40, streams=6, websockets=3) as load,
    ):
        pid = gateway.upgrade()
        gateway.configure(access_log="all")
        assert gateway.run("reload").returncode == 0
        gateway.wait_alone(1)
        gateway.velox.signal(signal.SIGUSR2)  # the process that it was started as passes it on
        gateway.velox.wait_log(lambda line: f'"pid": {pid}' in line and "is the gateway now" in line)
        gateway.wait_alone(2)
    assert load.failures == []
    assert min(load.done[kind] for kind in ("request", "stream", "websocket")) > 5, load.done


def test_gateway_ends_with_the_process_that_it_was_started_as(tmp_path: Path) -> None:
    """Whoever kills that one knows no other: the version that serves drains, and leaves."""
    with running(tmp_path, {"workers": 1}) as gateway:
        gateway.upgrade()
        gateway.wait_alone(1)
        gateway.velox.signal(signal.SIGKILL)
        gateway.velox.wait_log(lambda line: "shutdown complete" in line)


@pytest.mark.more
def test_nothing_fails_for_minutes(tmp_path: Path) -> None:
    """The same for long, with 200 requests a second, 100 streams, 20 WebSockets, 10 upgrades and 20 reloads.

    Between them workers are killed: what fails then is what they had, and nothing else.
    """
    sim = "--ttft 200ms --token-rate 40 --tokens 80"
    config = {"workers": 2, "ledger": str(tmp_path / "ledger")}
    with running(tmp_path, config, sim=sim, VELOX_UPGRADE_TIMEOUT="120s") as gateway:
        with SteadyLoad(gateway.velox.port, rate=200, streams=100, websockets=20) as load:
            for n in range(1, 11):
                gateway.upgrade()
                for level in ("all", "errors"):
                    gateway.configure(access_log=level)
                    assert gateway.run("reload").returncode == 0
                gateway.wait_alone(n)
        assert load.failures == []
        assert load.done["request"] > 1000, load.done
        pid = gateway.upgrade()
        gateway.wait_alone(11)
        with SteadyLoad(gateway.velox.port, rate=50, streams=10) as load:
            for _ in range(5):
                victim = gateway.workers(pid)[0]
                os.kill(victim, signal.SIGKILL)
                until(
                    lambda victim=victim: len(gateway.workers(pid)) == 2 and victim not in gateway.workers(pid),
                    "a worker was replaced",
                )
        # Ten streams are open, and of requests those of the time that one takes.
        assert len(load.failures) <= 5 * (10 + 50), load.failures
        assert not any("refused" in failure for failure in load.failures), load.failures


def test_websocket_and_idle_connection_outlive_an_upgrade(tmp_path: Path) -> None:
    """What is open stays with the version before, for as long as it takes; meanwhile there is no further upgrade."""
    from websockets.sync.client import connect

    with running(tmp_path, {"workers": 2}) as gateway, Client(gateway.velox) as idle:
        assert idle.ask().status == 200
        with connect(f"ws://127.0.0.1:{gateway.velox.port}/v1/realtime?model=m") as ws:
            assert json.loads(ws.recv())["type"] == "session.created"
            gateway.upgrade()
            ws.send('{"type": "response.create"}')
            while json.loads(ws.recv())["type"] != "response.done":
                pass
            last = idle.ask()
            assert (last.status, last.header("connection")) == (200, "close")
            again = gateway.run("upgrade")
            assert again.returncode == 1
            assert "1 worker of the version before still end" in again.stderr or "2 workers" in again.stderr, again
            assert ask(gateway.velox) == 200
        gateway.wait_alone(1)
        gateway.upgrade()
        assert ask(gateway.velox) == 200


_BROKEN: Final[dict[str, tuple[str, str]]] = {
    # What its modules do at their start, and what is told of it.
    "an import error": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "a crash": ("import os; os.kill(os.getpid(), 9)", "it ended before it was ready"),
    "a time-out": ("import signal; signal.pause()", "it was not ready within 3 s (VELOX_UPGRADE_TIMEOUT)"),
    "an early exit": ("import os; os._exit(3)", "it ended before it was ready"),
}


@pytest.mark.parametrize("broken", _BROKEN)
def test_version_that_does_not_get_ready_changes_nothing(tmp_path: Path, broken: str) -> None:
    """The command says why, with exit code 1; the running gateway goes on, and can be upgraded after that."""
    code, told = _BROKEN[broken]
    with running(tmp_path, {"workers": 1}, VELOX_UPGRADE_TIMEOUT="3s" if "time-out" in broken else "60s") as gateway:
        workers = gateway.workers(gateway.velox.pid)
        (tmp_path / "uvloop.py").write_text(code)
        done = gateway.run("upgrade")
        assert done.returncode == 1, done
        assert "the running gateway goes on as before" in done.stderr
        assert told in done.stderr, done.stderr
        assert ask(gateway.velox) == 200
        assert gateway.workers(gateway.velox.pid) == workers
        (tmp_path / "uvloop.py").unlink()
        if broken != "a time-out":  # on a busy machine a whole one does not start in so short a time either
            until(lambda: gateway.run("upgrade").returncode == 0, "an upgrade to a version that starts")
            assert ask(gateway.velox) == 200


def test_settings_that_can_not_be_used_change_nothing(tmp_path: Path) -> None:
    """They are told with file and line, as at a start; so is a certificate that is missing."""
    with running(tmp_path, {"workers": 1}) as gateway:
        gateway.configure(workers="many")
        done = gateway.run("upgrade")
        assert done.returncode == 1
        assert "velox.yaml" in done.stderr and "workers is 'many'" in done.stderr, done.stderr
        gateway.configure(workers=1, tls_cert="absent.pem", tls_key="absent.key")
        done = gateway.run("upgrade")
        assert done.returncode == 1 and "absent" in done.stderr, done.stderr
        assert ask(gateway.velox) == 200


def test_limits_hold_over_an_upgrade(tmp_path: Path) -> None:
    """A limit that is used up before is used up after it; with another number of workers, too."""
    limits = [{"per": "gateway", "rpm": 1, "burst": 5}]
    with running(tmp_path, {"workers": 2, "limits": limits}) as gateway:
        statuses = [ask(gateway.velox) for _ in range(6)]
        assert statuses.count(429) >= 1, statuses
        gateway.upgrade()
        assert ask(gateway.velox) == 429
        gateway.wait_alone(1)
        gateway.configure(workers=3)
        pid = gateway.upgrade()
        gateway.wait_alone(2)
        assert len(gateway.workers(pid)) == 3
        assert ask(gateway.velox) == 429


def test_records_and_budgets_hold_over_upgrades(tmp_path: Path) -> None:
    """Each call is recorded once, also those that an upgrade has met; what a budget has counted it goes on from."""
    config = {
        "workers": 2,
        "ledger": str(tmp_path / "ledger"),
        "budgets": [{"per": "gateway", "tokens": "1M", "window": "day"}],
    }
    with running(tmp_path, config, sim="--ttft 20ms --token-rate 400 --tokens 40") as gateway:
        velox = gateway.velox
        with SteadyLoad(velox.port, rate=15, streams=2) as load:
            for n, workers in ((1, 2), (2, 3), (3, 3)):
                gateway.configure(workers=workers)
                gateway.upgrade()
                gateway.wait_alone(n)
        assert load.failures == []
        n_calls = sum(load.done.values())

        def recorded() -> list[dict[str, Any]]:
            done = subprocess.run(
                [sys.executable, "-m", "velox", "usage", "--calls", "--format", "jsonl"],
                cwd=REPOSITORY,
                env={"VELOX_CONFIG": str(tmp_path / "velox.yaml"), "PATH": os.environ["PATH"]},
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=True,
            )
            return [json.loads(line) for line in done.stdout.splitlines()]

        until(lambda: len(recorded()) >= n_calls, f"{n_calls} calls are recorded", 60.0)
        calls = recorded()
        assert len(calls) == n_calls
        tokens = sum(call["input_tokens"] + call["output_tokens"] for call in calls)

        def spent() -> int:
            (budget,) = velox.admin("/api/v1/budgets").json()["data"]
            return int(budget["spent"])

        until(lambda: spent() == tokens, f"the budget has counted {tokens} tokens, not {spent()}", 20.0)
