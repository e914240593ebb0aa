"""Simulated model servers that can be killed, stopped for a while and started again, and a gateway before several.

Knows: how they are started, what is done to them and when. Does not know: load, figures, what the gateway makes of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.servers import free_port, get
from bench.simulated import Gateway, running

__all__ = ["ModelServer", "gateway_before", "keep_to", "model_servers", "series", "total"]

# Below those that the kernel gives to who connects: a server that is away for a while finds its port free again.
_PORTS: Final = range(20_000, 32_000)
_GRACE_S: Final = 3.0


class ModelServer:
    """One `velox sim`, always on the same port."""

    def __init__(self, name: str, options: Sequence[str]) -> None:
        """options: of `velox sim`, beside its address."""
        self.name: Final = name
        self.port: Final = _port()
        self._options: Final = tuple(options)
        self._running: Final = contextlib.ExitStack()
        self._pid = 0
        self.start()

    def __repr__(self) -> str:
        return f"<ModelServer {self.name} port={self.port} pid={self._pid}>"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = ["sim", "--listen", f"127.0.0.1:{self.port}", "--grace", f"{_GRACE_S:g}s", *self._options]
        self._pid = self._running.enter_context(running(command, {}, self.port, "/v1/models"))

    def stop(self) -> None:
        """Let it end what it answers, for some seconds, and leave."""
        self.resume()
        self._running.close()
        self._pid = 0

    def crash(self) -> None:
        """Kill it: what it answers is cut."""
        os.kill(self._pid, signal.SIGKILL)
        self.stop()

    def pause(self) -> None:
        """Let it stand still: it takes connections and says nothing."""
        os.kill(self._pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self._pid:
            os.kill(self._pid, signal.SIGCONT)


def _port() -> int:
    chosen = random.SystemRandom()
    while True:
        port = chosen.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextlib.contextmanager
def model_servers(options: Mapping[str, Sequence[str]]) -> Iterator[dict[str, ModelServer]]:
    """Run a server of each name until the end of the block."""
    with contextlib.ExitStack() as stack:
        started: dict[str, ModelServer] = {}
        for name, given in options.items():
            started[name] = ModelServer(name, given)
            stack.callback(started[name].stop)
        yield started


@contextlib.contextmanager
def gateway_before(file: Path | str, settings: Mapping[str, str] | None = None) -> Iterator[Gateway]:
    """Run a gateway with two workers and a configuration until the end of the block.

    file: a file, or its text. settings: what is not as it is by default, beside addresses and logs.
    """
    port, admin = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        if isinstance(file, str):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            path = Path(folder) / "velox.yaml"
            path.write_text(file)
            file = path
        given = {
            "VELOX_LISTEN": f"127.0.0.1:{port}",
            "VELOX_ADMIN_LISTEN": f"127.0.0.1:{admin}",
            "VELOX_CONFIG": str(file),
            "VELOX_WORKERS": "2",
            "VELOX_RATE_LIMIT_RPM": "0",
            "VELOX_ACCESS_LOG": "off",
            "VELOX_DRAIN_TIMEOUT": "1s",
            **(settings or {}),
        }
        yield Gateway(port, admin, stack.enter_context(running(["serve"], given, admin, "/readyz")))


def series(admin: int, prefix: str = "velox_") -> dict[str, float]:
    """Return the metrics of a gateway whose names begin so, each with its labels as they are written."""
    _, page = get(admin, "/metrics")
    found = (line.rpartition(" ") for line in page.decode().splitlines() if line.startswith(prefix))
    return {name: float(value) for name, _, value in found}


def total(metrics: Mapping[str, float], name: str, *labels: str) -> float:
    """Return the sum of a metric's series that have all of these labels, each as `name="value"`."""
    return sum(
        value
        for each, value in metrics.items()
        if each.partition("{")[0] == name and all(label in each for label in labels)
    )


def keep_to(seconds: float, started_s: float) -> None:
    """Sleep until so many seconds after a moment of time.monotonic()."""
    time.sleep(max(0.0, started_s + seconds - time.monotonic()))
