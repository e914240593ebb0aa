"""Nothing of a request stays in a worker that only the garbage collector would free: on no lane, however it ends.

Of what stays by mistake most is a request's body, once or several times: a reference cycle leaves each for ever, as the
collector runs when more is allocated than freed, and the traffic of a gateway is in balance.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.e2e.collecting import uncollected, unreachable
from tests.e2e.harness import VeloxProcess
from tests.e2e.raw_http import read_reply
from tests.e2e.tools import request_bytes
from tests.soak.ground import start_provider
from tests.soak.lanes import LANES, SECRETS, Lane, configuration


@dataclass
class Ground:
    """A gateway of one worker whose collector is off."""

    velox: VeloxProcess
    worker: int
    folder: str

    def ask(self, lane: Lane, *, stream: bool = False, fault: str = "", **headers: str) -> int:
        """Ask once, on a connection of its own; return the status, 0 where the reply was cut."""
        request = lane.request("a word " * 200, stream=stream, fault=fault, headers=headers)
        method = "POST" if request.body else "GET"
        with self.velox.connect(30.0) as sock:
            sock.sendall(request_bytes(method, request.path, request.body or None, request.headers))
            with contextlib.suppress(ConnectionError):
                return read_reply(sock).status
        return 0

    def left(self) -> dict[str, int]:
        """Return what a collection frees, by type, once nothing runs."""
        self.velox.wait_metric("velox_inflight_requests", lambda n: n == 0)
        return dict(unreachable(self.worker, self.folder))


ENV = {
    **SECRETS,
    "VELOX_WORKERS": "1",
    "VELOX_RATE_LIMIT_RPM": "0",
    "VELOX_RETRIES": "1",
    "VELOX_RETRY_MAX_WAIT": "0.1s",
    "VELOX_UPSTREAM_FIRST_BYTE_TIMEOUT": "0.5s",
    "VELOX_UPSTREAM_IDLE_TIMEOUT": "0.5s",
}


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with start_provider() as origin, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "velox.yaml")
        path.write_text(yaml.safe_dump(configuration({}, origin)))
        with VeloxProcess({**ENV, "VELOX_CONFIG": str(path)}, launcher=uncollected(folder)) as velox:
            (worker,) = velox.worker_pids()
            made = Ground(velox, worker, folder)
            made.ask(LANES[0])
            made.left()  # of the start, and of modules that are loaded with the first request
            yield made


def test_answered_requests_leave_nothing(ground: Ground) -> None:
    """In each client's API, to each API of a model, plain and streamed; counts, vectors, forms, copies, hedges."""
    found = {}
    for lane in LANES:
        for stream in (False, True)[: 1 + lane.streams]:
            status = ground.ask(lane, stream=stream)
            left = ground.left()
            if status != 200 or left:
                found[f"{lane.name}{', streamed' * stream}"] = (status, left)

    assert found == {}
